#!/bin/sh
# Write Python 3.11 for 64-bit ARM, with what the packed agent needs, into a folder, and a program
# FOLDER/python that runs it under QEMU. It needs Debian 12, its package qemu-user, and root. Newer
# releases of ONNX Runtime end in a segmentation fault under QEMU 7.2 (tried: 1.28 and 1.32).
set -eu
if [ $# -ne 1 ]; then
    echo "usage: arm64_root.sh FOLDER" >&2
    exit 2
fi
folder=$(realpath -m "$1")
mkdir -p "$folder/packages" "$folder/root" "$folder/site"
dpkg --add-architecture arm64
apt-get -qq update
cd "$folder/packages"
for name in python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 \
    libstdc++6 zlib1g libssl3 libffi8 libexpat1 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 \
    libcrypt1 libncursesw6 libtinfo6 libreadline8 libdb5.3; do
    apt-get -qq download "$name:arm64"
done
for package in *.deb; do
    dpkg-deb -x "$package" "$folder/root"
done
python3 -m pip install -q --target "$folder/site" --only-binary :all: --no-compile \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 \
    --python-version 3.11 --implementation cp numpy onnx "onnxruntime>=1.27,<1.28" cryptography
cat > "$folder/python" <<END
#!/bin/sh
# The name of this program is what Python takes for its own, so that it starts itself through QEMU.
exec qemu-aarch64 -0 "$folder/python" -L "$folder/root" -E PYTHONHOME="$folder/root/usr" \\
    -E PYTHONPATH="\${PYTHONPATH:+\$PYTHONPATH:}$folder/site" "$folder/root/usr/bin/python3.11" "\$@"
END
chmod +x "$folder/python"
"$folder/python" -c 'import platform, onnxruntime; print(platform.machine(), onnxruntime.__version__)'
