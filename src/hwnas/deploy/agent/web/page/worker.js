// Worker that runs networks in ONNX Runtime Web, with one runtime and one number of threads.

let ort = null;
let provider = "wasm";
const sessions = new Map();

// Smallest step of the clock, which browsers make coarse.
function grain() {
  let least = Infinity;
  for (let found = 0; found < 50;) {
    const start = performance.now();
    let now = start;
    while (now === start) now = performance.now();
    least = Math.min(least, now - start);
    found += 1;
  }
  return least;
}

async function open({ runtime, threads }) {
  provider = runtime === "webgpu" ? "webgpu" : "wasm";
  ort = await import(provider === "webgpu" ? "/ort/ort.webgpu.min.mjs" : "/ort/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = "/ort/";
  const allowed = self.crossOriginIsolated ? threads : 1;
  ort.env.wasm.numThreads = allowed;
  if (provider === "webgpu" && !(await navigator.gpu?.requestAdapter())) {
    throw new Error("there is no WebGPU");
  }
  return { version: ort.env.versions?.web ?? "", grain_ms: grain(), threads: allowed };
}

async function load({ key, shape, model }) {
  const begun = performance.now();
  const session = await ort.InferenceSession.create(new Uint8Array(model), {
    executionProviders: [provider],
    graphOptimizationLevel: "all",
  });
  const size = shape.reduce((product, side) => product * side, 1);
  const values = Float32Array.from({ length: size }, () => 2 * Math.random() - 1);
  const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", values, shape) };
  const loaded = performance.now();
  await session.run(feeds);
  sessions.set(key, { session, feeds });
  return { load_ms: loaded - begun, first_ms: performance.now() - loaded };
}

async function run({ key, repeats }) {
  const { session, feeds } = sessions.get(key);
  const begun = performance.now();
  for (let i = 0; i < repeats; i += 1) await session.run(feeds);
  return { ms: performance.now() - begun };
}

const ACTIONS = { open, load, run };

self.onmessage = async (event) => {
  try {
    self.postMessage(await ACTIONS[event.data.do](event.data));
  } catch (error) {
    self.postMessage({ error: String(error?.message ?? error) });
  }
};
