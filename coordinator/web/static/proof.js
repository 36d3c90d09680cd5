// Checks the proof that the page states: the words of the entry, hashes, path and root by SHA-256, and the signature
// where Ed25519 is there.
"use strict";

const text = (id) => document.getElementById(id).textContent;
const bytes = (hex) => Uint8Array.from(hex.trim().match(/../g) || [], (pair) => parseInt(pair, 16));
const hex = (data) => Array.from(data, (one) => one.toString(16).padStart(2, "0")).join("");
const unpacked = (base64) => Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));

function joined(...parts) {
  return Uint8Array.from(parts.flatMap((part) => Array.from(part)));
}

// FIPS 180-4. The constants are the first 32 bits of the fractions of roots of primes.
const PRIMES = [];
for (let number = 2; PRIMES.length < 64; number++) if (PRIMES.every((prime) => number % prime)) PRIMES.push(number);
const fraction = (root) => Math.floor((root - Math.floor(root)) * 2 ** 32);
const START = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const ROUNDS = PRIMES.map((prime) => fraction(Math.cbrt(prime)));
const turned = (word, by) => (word >>> by) | (word << (32 - by));

function ownSha256(data) {
  const padded = new Uint8Array(((data.length + 72) >> 6) << 6);
  padded.set(data);
  padded[data.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(data.length / 2 ** 29));
  view.setUint32(padded.length - 4, data.length << 3);
  const state = START.slice();
  const words = new Uint32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    for (let at = 0; at < 64; at++) {
      if (at < 16) words[at] = view.getUint32(block + 4 * at);
      else {
        const [early, late] = [words[at - 15], words[at - 2]];
        const low = turned(early, 7) ^ turned(early, 18) ^ (early >>> 3);
        words[at] = words[at - 16] + low + words[at - 7] + (turned(late, 17) ^ turned(late, 19) ^ (late >>> 10));
      }
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let at = 0; at < 64; at++) {
      const chosen = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + ROUNDS[at] + words[at];
      const mixed = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + chosen) >>> 0, c, b, a, (chosen + mixed) >>> 0];
    }
    [a, b, c, d, e, f, g, h].forEach((word, at) => (state[at] = (state[at] + word) >>> 0));
  }
  return Uint8Array.from(state.flatMap((word) => [word >>> 24, (word >>> 16) & 255, (word >>> 8) & 255, word & 255]));
}

async function sha256(data) {
  return globalThis.crypto?.subtle ? new Uint8Array(await crypto.subtle.digest("SHA-256", data)) : ownSha256(data);
}

// Decodes the MessagePack of an entry; bytes become hexadecimal digits, as the page states them.
function decoded(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let at = 0;
  const taken = (count) => data.subarray(at, (at += count));
  const number = (kind, count) => Number(view[`get${kind}`]((at += count) - count));
  const unsigned = (power) => number(["Uint8", "Uint16", "Uint32", "BigUint64"][power], 1 << power);
  const words = (count) => new TextDecoder("utf-8", { fatal: true }).decode(taken(count));
  const list = (count) => Array.from({ length: count }, value);
  const map = (count) => Object.fromEntries(Array.from({ length: count }, () => [String(value()), value()]));
  function value() {
    const kind = unsigned(0);
    if (kind < 0x80 || kind > 0xdf) return kind < 0x80 ? kind : kind - 256;
    if (kind < 0xc0) return kind < 0x90 ? map(kind & 15) : kind < 0xa0 ? list(kind & 15) : words(kind & 31);
    if (kind === 0xc0) return null;
    if (kind === 0xc2 || kind === 0xc3) return kind === 0xc3;
    if (kind >= 0xc4 && kind <= 0xc6) return hex(taken(unsigned(kind - 0xc4)));
    if (kind === 0xca || kind === 0xcb) return kind === 0xca ? number("Float32", 4) : number("Float64", 8);
    if (kind >= 0xcc && kind <= 0xcf) return unsigned(kind - 0xcc);
    if (kind >= 0xd0 && kind <= 0xd3) return number(["Int8", "Int16", "Int32", "BigInt64"][kind - 0xd0], 1 << (kind - 0xd0));
    if (kind >= 0xd9 && kind <= 0xdb) return words(unsigned(kind - 0xd9));
    if (kind >= 0xdc) return kind < 0xde ? list(unsigned(kind - 0xdb)) : map(unsigned(kind - 0xdd));
    throw new Error("a value of another kind");
  }
  return value();
}

// Tells whether the words of the entry, and its lease, are those of its bytes.
function tells(canonical, hash) {
  const [entry, at, kind, key, postings, facts] = decoded(canonical);
  const told = { entry, at, kind, key, postings, facts: decoded(bytes(facts)), hash };
  return key === `lease:${text("lease").trim()}` && JSON.stringify(told) === JSON.stringify(JSON.parse(text("told")));
}

function say(good, words) {
  const row = document.createElement("li");
  row.textContent = (good === null ? "not checked: " : good ? "right: " : "WRONG: ") + words;
  document.getElementById("checks").append(row);
}

// Returns whether a key signed the note; null: this browser cannot tell.
async function signed(note, keys) {
  const [body, signatures] = note.split("\n\n");
  if (!globalThis.crypto?.subtle) return null;
  for (const row of (signatures || "").split("\n").filter((one) => one.startsWith("— "))) {
    const signature = unpacked(row.split(" ").pop()).slice(4);
    for (const key of keys) {
      try {
        const opened = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
        if (await crypto.subtle.verify("Ed25519", opened, signature, new TextEncoder().encode(body + "\n"))) return true;
      } catch {
        return null;
      }
    }
  }
  return false;
}

async function check() {
  const canonical = bytes(text("canonical"));
  const hash = hex(await sha256(joined(bytes(text("previous")), canonical)));
  let digest = await sha256(joined([0], canonical));
  for (const step of document.querySelectorAll("#path li")) {
    const sibling = bytes(step.querySelector("code").textContent);
    digest = await sha256(step.dataset.side === "left" ? joined([1], sibling, digest) : joined([1], digest, sibling));
  }
  const note = text("note");
  const keys = Array.from(document.querySelectorAll("[data-key]"), (one) => bytes(one.textContent));
  const results = [
    [tells(canonical, hash), "lease and words of the entry are those of its bytes"],
    [hash === text("hash").trim(), "the hash of the entry follows from its bytes and the hash before"],
    [hex(digest) === text("root").trim(), "the path leads from the entry to the root"],
    [hex(unpacked(note.split("\n")[2])) === text("root").trim(), "the checkpoint has this root"],
    [await signed(note, keys), "the ledger's key signed the checkpoint"],
  ];
  for (const [good, words] of results) say(good, words);
  const outcome = document.getElementById("outcome");
  if (results.some(([good]) => good === false)) outcome.textContent = "WRONG: this proof does not hold. Keep this page.";
  else if (results.some(([good]) => good === null))
    outcome.textContent =
      "Hashes and path are right. The signature was not checked here: a browser does that over https or on this machine; `echo2-node receipts verify` does it offline.";
  else outcome.textContent = "Checked by this browser: entry, path, root and signature are right.";
}

check().catch((error) => (document.getElementById("outcome").textContent = `WRONG: the proof cannot be read: ${error}`));
