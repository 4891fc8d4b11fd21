// The page: loads the network, and shows what it finds in a picture or in the camera's images.

import * as ort from "./ort/ort.wasm.min.mjs";
import { preprocess, probabilities } from "./pixels.js";

const SHOWN = 5;
const element = (id) => document.getElementById(id);
let network = null;
let session = null;

function say(text) {
  element("state").textContent = text;
}

async function load() {
  ort.env.wasm.wasmPaths = new URL("./ort/", location.href).href;
  if (!self.crossOriginIsolated) ort.env.wasm.numThreads = 1;
  network = await (await fetch("network.json")).json();
  session = await ort.InferenceSession.create("model.onnx", { executionProviders: ["wasm"] });
  say("Ready.");
}

// Pixels of a picture at its own size, upright, without colour management.
async function pixelsOf(source) {
  const bitmap = source instanceof Blob
    ? await createImageBitmap(source, { colorSpaceConversion: "none", premultiplyAlpha: "none" })
    : await createImageBitmap(source);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

// Labels with their probabilities, the most probable first.
export async function classify(source) {
  const wanted = network.preprocessing;
  const values = preprocess(await pixelsOf(source), wanted);
  const shape = [1, wanted.channels, wanted.height, wanted.width];
  const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", values, shape) };
  const outputs = await session.run(feeds);
  const logits = [...outputs[session.outputNames[0]].data];
  return probabilities(logits, network.kind)
    .map((probability, i) => ({ label: network.labels[i] ?? String(i), probability }))
    .sort((one, other) => other.probability - one.probability);
}

function show(answers) {
  element("answers").replaceChildren(...answers.slice(0, SHOWN).map(({ label, probability }) => {
    const item = document.createElement("li"), name = document.createElement("span");
    const share = document.createElement("span"), bar = document.createElement("progress");
    name.textContent = label;
    share.textContent = `${(100 * probability).toFixed(1)} %`;
    bar.value = probability;
    item.append(name, share, bar);
    return item;
  }));
}

async function onFile() {
  const file = element("file").files[0];
  if (!file) return;
  const picture = element("picture");
  picture.src = URL.createObjectURL(file);
  picture.hidden = false;
  element("video").hidden = true;
  try {
    show(await classify(file));
    say("Ready.");
  } catch (error) {
    say(`This picture cannot be used: ${error.message}`);
  }
}

async function onCamera() {
  const video = element("video");
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({
      video: { facingMode: "environment" },
    });
  } catch (error) {
    say(`The camera cannot be used: ${error.message}. Cameras need a page over HTTPS.`);
    return;
  }
  element("picture").hidden = true;
  video.hidden = false;
  await video.play();
  say("Showing what the camera sees.");
  while (!video.hidden) {
    show(await classify(video));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  video.srcObject?.getTracks().forEach((track) => track.stop());
}

self.classify = classify; // for tests and for other scripts of a page

if ("serviceWorker" in navigator) {
  navigator.serviceWorker.register("sw.js").catch(() => {}); // without it the page works online
}
element("file").addEventListener("change", onFile);
element("camera").addEventListener("click", onCamera);
load().catch((error) => say(`The network could not be loaded: ${error.message}`));
