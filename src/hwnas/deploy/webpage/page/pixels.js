// Preprocessing of pictures, as hwnas does it: crop, resize, scale, normalise.

// Weights of the input pixels of each output pixel: bilinear, with a wider triangle when the image
// shrinks (antialiasing), as in PyTorch's interpolate.
function weights(from, to) {
  const scale = from / to, support = Math.max(scale, 1);
  return Array.from({ length: to }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - support + 0.5));
    const end = Math.min(from, Math.floor(centre + support + 0.5));
    const found = [];
    let sum = 0;
    for (let i = first; i < end; i += 1) {
      const weight = Math.max(0, 1 - Math.abs((i - centre + 0.5) / support));
      found.push(weight);
      sum += weight;
    }
    return { first, values: found.map((weight) => weight / sum) };
  });
}

// Resize channels of height x width values; Float32Array in and out.
export function resize(values, channels, height, width, newHeight, newWidth) {
  if (height === newHeight && width === newWidth) return values;
  const columns = weights(width, newWidth), rows = weights(height, newHeight);
  const narrow = new Float32Array(channels * height * newWidth);
  for (let line = 0; line < channels * height; line += 1) {
    columns.forEach(({ first, values: each }, x) => {
      let sum = 0;
      for (let i = 0; i < each.length; i += 1) sum += each[i] * values[line * width + first + i];
      narrow[line * newWidth + x] = sum;
    });
  }
  const found = new Float32Array(channels * newHeight * newWidth);
  for (let c = 0; c < channels; c += 1) {
    rows.forEach(({ first, values: each }, y) => {
      for (let x = 0; x < newWidth; x += 1) {
        let sum = 0;
        for (let i = 0; i < each.length; i += 1) {
          sum += each[i] * narrow[(c * height + first + i) * newWidth + x];
        }
        found[(c * newHeight + y) * newWidth + x] = sum;
      }
    });
  }
  return found;
}

// Rounding as in Python: halves go to the even number.
function halfEven(value) {
  const low = Math.floor(value), over = value - low;
  return over === 0.5 ? low + (low % 2) : Math.round(value);
}

// The largest box in the aspect ratio of the input, in the centre.
function centred(height, width, wanted) {
  const side = (most, other, part, whole) =>
    Math.min(most, Math.max(1, halfEven((other * part) / whole)));
  const h = side(height, width, wanted.height, wanted.width);
  const w = side(width, height, wanted.width, wanted.height);
  return { top: Math.floor((height - h) / 2), left: Math.floor((width - w) / 2), h, w };
}

// Input of the network, Float32Array of channels x height x width, from RGBA pixels.
export function preprocess({ data, width, height }, wanted) {
  const box = wanted.fit === "crop"
    ? centred(height, width, wanted)
    : { top: 0, left: 0, h: height, w: width };
  const { channels } = wanted, size = box.h * box.w;
  const values = new Float32Array(channels * size);
  for (let y = 0; y < box.h; y += 1) {
    for (let x = 0; x < box.w; x += 1) {
      const at = 4 * ((box.top + y) * width + box.left + x), to = y * box.w + x;
      if (channels === 1) { // the weights of ITU-R 601-2, in whole numbers as Pillow has them
        values[to] = (data[at] * 19595 + data[at + 1] * 38470 + data[at + 2] * 7471 + 0x8000) >> 16;
      } else {
        for (let c = 0; c < 3; c += 1) values[c * size + to] = data[at + c];
      }
    }
  }
  const resized = resize(values, channels, box.h, box.w, wanted.height, wanted.width);
  const plane = wanted.height * wanted.width;
  return resized.map((value, i) => {
    const c = Math.floor(i / plane);
    return (value / 255 - wanted.mean[c]) / wanted.std[c];
  });
}

export function probabilities(logits, kind) {
  if (kind === "label_scores") return logits.map((logit) => 1 / (1 + Math.exp(-logit)));
  const most = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}
