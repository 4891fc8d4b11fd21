// The page: pairs this browser, asks for commands, and has workers do them.

const STORE = "hwnas-pairing";
const page = random();
let session = "";
let pairing = null;
let wakeLock = null;
const engines = new Map();

const element = (id) => document.getElementById(id);

function random() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return hex(bytes);
}

function hex(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function say(text) {
  element("message").textContent = text;
}

function state(text, share) {
  element("state").textContent = text;
  if (share !== undefined) element("progress").value = share;
}

// What the browser tells of itself and of the device.
async function factsOf() {
  const data = navigator.userAgentData;
  const high = data?.getHighEntropyValues
    ? await data.getHighEntropyValues(["model", "platformVersion"]).catch(() => ({}))
    : {};
  const brand = data?.brands?.find((each) => !/not.?a.?brand|chromium/i.test(each.brand))
    ?? data?.brands?.find((each) => !/not.?a.?brand/i.test(each.brand));
  const platform = data?.platform || navigator.platform || "unknown system";
  return {
    device: [high.model, platform].filter(Boolean).join(", "),
    browser: brand ? `${brand.brand} ${brand.version}` : shortAgent(),
    cores: navigator.hardwareConcurrency || 0,
    memory_gib: navigator.deviceMemory || 0,
    webgpu: await gpuName(),
    isolated: self.crossOriginIsolated === true,
  };
}

function shortAgent() {
  const found = navigator.userAgent.match(/(Firefox|Version|Chrome|Safari)\/[\d.]+/);
  return found ? found[0].replace("/", " ") : "unknown browser";
}

async function gpuName() {
  try {
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) return "";
    const info = adapter.info ?? {};
    return [info.vendor, info.architecture].filter(Boolean).join(" ") || "unknown GPU";
  } catch {
    return "";
  }
}

async function post(path, body) {
  const reply = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(answer.message), { status: reply.status });
  return answer;
}

// A count that grows with every request, also after the page is loaded again.
let last = 0;
function count() {
  last = Math.max(last + 1, Date.now() * 1000);
  return String(last);
}

async function signed(path, body) {
  const content = new TextEncoder().encode(body);
  const digest = hex(new Uint8Array(await crypto.subtle.digest("SHA-256", content)));
  const number = count();
  const text = [session, "POST", path, number, digest].join("\n");
  const bytes = Uint8Array.from(pairing.key.match(/../g), (pair) => parseInt(pair, 16));
  const key = await crypto.subtle.importKey(
    "raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const signature = await crypto.subtle.sign("HMAC", key, new TextEncoder().encode(text));
  return fetch(path, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      "X-Hwnas-Count": number,
      "X-Hwnas-Signature": hex(new Uint8Array(signature)),
    },
    body: content,
  });
}

async function stayAwake() {
  try {
    wakeLock = await navigator.wakeLock?.request("screen");
  } catch {
    wakeLock = null; // the battery is low, or the browser does not allow it
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  state("Paused: this page is hidden. Browsers slow hidden pages, so nothing is measured now.");
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", function shown() {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", shown);
      stayAwake();
      resolve();
    });
  });
}

// Worker of a runtime with a number of threads. It does one thing at a time.
class Engine {
  constructor() {
    this.worker = new Worker("/worker.js", { type: "module" });
  }

  ask(message, transfer = []) {
    return new Promise((resolve, reject) => {
      this.worker.onmessage = (event) =>
        event.data.error ? reject(new Error(event.data.error)) : resolve(event.data);
      this.worker.onerror = (event) => reject(new Error(event.message || "the worker failed"));
      this.worker.postMessage(message, transfer);
    });
  }

  close() {
    this.worker.terminate();
  }
}

function reset() {
  for (const engine of engines.values()) engine.close();
  engines.clear();
}

async function modelOf(digest) {
  const reply = await signed(`/models/${pairing.name}/${digest}`, "");
  if (!reply.ok) throw new Error(`the model could not be loaded (${reply.status})`);
  return reply.arrayBuffer();
}

async function perform(command) {
  if (command.do === "reset") {
    reset();
    return {};
  }
  if (command.do === "open") {
    const engine = new Engine();
    engines.get(command.engine)?.close();
    engines.set(command.engine, engine);
    return engine.ask({ do: "open", runtime: command.runtime, threads: command.threads });
  }
  const engine = engines.get(command.engine);
  if (!engine) throw new Error("the worker is gone");
  if (command.do === "load") {
    const model = await modelOf(command.model);
    return engine.ask(
      { do: "load", key: command.key, shape: command.shape, model }, [model]);
  }
  let hidden = document.hidden;
  const note = () => { hidden = hidden || document.hidden; };
  document.addEventListener("visibilitychange", note);
  try {
    const found = await engine.ask({ do: "run", key: command.key, repeats: command.repeats });
    return { ...found, hidden };
  } finally {
    document.removeEventListener("visibilitychange", note);
  }
}

async function work() {
  element("pair").hidden = true;
  element("work").hidden = false;
  element("paired").textContent = pairing.name;
  const facts = await factsOf();
  showFacts(facts);
  await stayAwake();
  let result = null, first = true, done = 0;
  for (;;) {
    await visible();
    let reply;
    try {
      const body = { page, result, facts: first ? facts : null, goes_on: !first };
      reply = await signed(`/poll/${pairing.name}`, JSON.stringify(body));
    } catch {
      say("The machine with hwnas does not answer; this page tries again.");
      await new Promise((resolve) => setTimeout(resolve, 2000));
      await refreshSession();
      continue;
    }
    if (reply.status === 401) {
      if (await refreshSession()) continue;
      say("This pairing is not valid any more. Pair this browser again.");
      forget();
      return;
    }
    if (reply.status === 409) {
      reset();
      state("Another page of this device has taken over. Close this one.");
      return;
    }
    say("");
    first = false;
    result = null;
    const { command } = await reply.json();
    if (!command) {
      state("Waiting for networks to measure.", 0);
      continue;
    }
    done = command.do === "reset" ? 0 : done + 1;
    state(`Measuring: ${command.do} ${command.key ?? command.engine ?? ""}`, 1 - 0.97 ** (done / 10));
    try {
      result = { ...(await perform(command)), number: command.number };
    } catch (error) {
      result = { error: String(error?.message ?? error), number: command.number };
    }
  }
}

// The number of the server's session changes when it is started again.
async function refreshSession() {
  try {
    const found = (await (await fetch("/session")).json()).session;
    const changed = found !== session;
    session = found;
    return changed;
  } catch {
    return false;
  }
}

function showFacts(facts) {
  const rows = {
    device: facts.device, browser: facts.browser, cores: facts.cores || "unknown",
    WebGPU: facts.webgpu || "not available",
    threads: facts.isolated ? "allowed" : "not allowed: they need HTTPS",
  };
  element("facts").replaceChildren(...Object.entries(rows).flatMap(([name, value]) => {
    const term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name;
    text.textContent = String(value);
    return [term, text];
  }));
}

function forget() {
  localStorage.removeItem(STORE);
  reset();
  pairing = null;
  element("work").hidden = true;
  element("pair").hidden = false;
}

async function pair(event) {
  event.preventDefault();
  say("");
  element("confirm").disabled = true;
  try {
    const asked = { name: element("name").value.trim(), code: element("code").value };
    pairing = await post("/pair", { ...asked, facts: await factsOf() });
    localStorage.setItem(STORE, JSON.stringify(pairing));
    work();
  } catch (error) {
    say(error.message);
  } finally {
    element("confirm").disabled = false;
  }
}

async function begin() {
  if (!crypto.subtle) {
    say("This browser allows no signatures here. Open the page over HTTPS.");
    return;
  }
  element("pair").addEventListener("submit", pair);
  element("forget").addEventListener("click", () => { forget(); location.reload(); });
  await refreshSession();
  pairing = JSON.parse(localStorage.getItem(STORE) ?? "null");
  if (pairing) work();
  else element("pair").hidden = false;
}

begin();
