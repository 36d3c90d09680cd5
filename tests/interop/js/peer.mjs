// A peer of echo2 on js-libp2p, written from docs/protocol alone; test_p2p_interop_js.py commands it.
//
// A command is one JSON object a line on stdin, {id, do, ...}; its answer is {id, ok} or {id, error} on stdout. What
// happens by itself is told as {event, ...}. Bytes are hex. The process ends with its stdin.

import { randomBytes } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { generateKeyPair, publicKeyFromRaw } from '@libp2p/crypto/keys'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { byteStream } from '@libp2p/utils'
import { decode, encode } from '@msgpack/msgpack'
import { multiaddr } from '@multiformats/multiaddr'
import { blake3 } from '@noble/hashes/blake3.js'
import { createLibp2p } from 'libp2p'

Promise.withResolvers ??= function () { // node 20 lacks it
  let resolve, reject
  const promise = new Promise((...both) => { [resolve, reject] = both })
  return { promise, resolve, reject }
}

const hex = bytes => Buffer.from(bytes).toString('hex')
const unhex = text => new Uint8Array(Buffer.from(text, 'hex'))
const tell = what => process.stdout.write(JSON.stringify(what) + '\n')

// --- requests.md: frames ---------------------------------------------------------------------------------------------

class TooLong extends Error {}

/** Frames over a stream: 4 bytes of length, big-endian, and so many bytes. */
class Frames {
  #held = Buffer.alloc(0)

  constructor (stream) {
    this.stream = stream
    this.bytes = byteStream(stream, { maxBufferSize: 128 << 20 })
  }

  async send (frame) {
    const head = Buffer.alloc(4)
    head.writeUInt32BE(frame.length)
    await this.bytes.write(Buffer.concat([head, frame]))
  }

  /** One frame; null when the other side has finished. Its length is checked before it is read. */
  async receive (limit) {
    const head = await this.#exactly(4)
    if (head === null) return null
    const length = head.readUInt32BE()
    if (length > limit) throw new TooLong(`a frame of ${length} bytes, the limit is ${limit}`)
    const frame = await this.#exactly(length)
    if (frame === null) throw new Error('the other side ended in the middle of a frame')
    return new Uint8Array(frame)
  }

  async #exactly (count) {
    while (this.#held.length < count) {
      const more = await this.bytes.read()
      if (more === null) {
        if (this.#held.length > 0) throw new Error('the other side ended in the middle of a frame')
        return null
      }
      this.#held = Buffer.concat([this.#held, more.subarray()])
    }
    const found = this.#held.subarray(0, count)
    this.#held = this.#held.subarray(count)
    return found
  }
}

/** Call `beat` every `every` ms until `work` is done. */
async function beating (every, beat, work) {
  const timer = setInterval(() => { beat().catch(() => {}) }, every)
  try {
    return await work
  } finally {
    clearInterval(timer)
  }
}

// --- requests.md: one question, one answer ---------------------------------------------------------------------------

const RPC = '/echo2/rpc/1'
const METHOD_LIMIT = 64
const ANSWER_LIMIT = (64 << 20) + 1
const [OK, TOO_LONG, UNKNOWN] = [0, 1, 2]
const METHODS = {
  reverse: { limit: 1 << 20, handler: async request => request.reverse() },
  slow: { limit: 16, handler: async request => { await new Promise(resolve => setTimeout(resolve, 5000)); return request } }
}

async function answer (stream, connection) {
  const frames = new Frames(stream)
  try {
    await frames.send(await answered(frames, connection.remotePeer.toString()))
    await stream.close()
  } catch (error) {
    stream.abort(error)
  }
}

async function answered (frames, from) {
  const refusal = (status, sentence) => Buffer.concat([Buffer.of(status), Buffer.from(sentence)])
  const method = METHODS[Buffer.from(await frames.receive(METHOD_LIMIT) ?? []).toString()]
  if (method === undefined) return refusal(UNKNOWN, 'no such method')
  try {
    const request = await frames.receive(method.limit)
    const work = method.handler(request, from)
    return Buffer.concat([Buffer.of(OK), await beating(4000, () => frames.send(Buffer.alloc(0)), work)])
  } catch (error) {
    if (error instanceof TooLong) return refusal(TOO_LONG, error.message)
    throw error
  }
}

async function ask ({ peer, method, request }) {
  const stream = await node.dialProtocol(ids.get(peer), RPC)
  const frames = new Frames(stream)
  await frames.send(Buffer.from(method))
  await frames.send(unhex(request))
  const closed = stream.close()
  let found
  do found = await frames.receive(ANSWER_LIMIT); while (found?.length === 0)
  await closed
  if (found === null) throw new Error('no answer')
  return { status: found[0], answer: hex(found.subarray(1)) }
}

// --- documents.md: sealed documents; requests.md: the request of a node ----------------------------------------------

function covered (kind, run, payload) {
  const length = Buffer.alloc(8)
  length.writeBigUInt64BE(BigInt(payload.length))
  return Buffer.concat([Buffer.from(`echo2/1/${kind}`), run, length, payload])
}

async function seal (kind, run, payload) {
  const signature = await key.sign(covered(kind, run, payload))
  return encode([kind, run, payload, [[key.publicKey.raw, signature]]])
}

/** The payload of a document that one of `keys` (hex) has signed. */
async function open (sealed, kind, run, keys) {
  const [theKind, theRun, payload, signatures] = decode(sealed)
  if (theKind !== kind || hex(theRun) !== hex(run)) throw new Error(`a ${theKind} where a ${kind} was expected`)
  for (const [signer, signature] of signatures) {
    if (!keys.includes(hex(signer))) continue
    if (await publicKeyFromRaw(signer).verify(covered(kind, run, payload), signature)) return payload
  }
  throw new Error('not signed by whom it must be')
}

async function hello ({ peer, run, recipient }) {
  const where = encode({ addresses: node.getMultiaddrs().map(String), issued: Date.now() })
  const body = encode({
    protocols: [1, 1], software: 'interop 1', name: 'js', engine: 'transformers/float32/cpu', device: 'cpu', tasks: [],
    record: await seal('peer', unhex(run), where)
  })
  const request = encode({
    recipient: unhex(recipient), id: new Uint8Array(randomBytes(16)), method: 'hello', expires: Date.now() + 60_000, body
  })
  const { status, answer } = await ask({ peer, method: 'hello', request: hex(await seal('request', unhex(run), request)) })
  if (status !== OK) throw new Error(`status ${status}`)
  const { body: welcome, refusal } = decode(unhex(answer))
  if (refusal) return { refusal }
  return { now: decode(welcome).now }
}

// --- gossip: a Head is verified before it is passed on ---------------------------------------------------------------

function subscribe ({ topic, run, keys }) {
  let newest = -1
  METHODS.gossip = {
    limit: 17 << 10,
    handler: async (request, from) => {
      const message = decode(request)
      if (message.topic !== topic) return Buffer.alloc(0)
      try {
        const head = decode(await open(message.data, 'head', unhex(run), keys))
        tell({ event: 'head', from, version: head.version })
        if (head.version > newest) {
          newest = head.version
          push({ topic, data: hex(message.data) }, from).catch(() => {})
        }
      } catch (error) {
        tell({ event: 'refused', from, why: error.message })
      }
      return Buffer.alloc(0)
    }
  }
}

/** Pushes a message to each connected peer but `from`. */
async function push ({ topic, data }, from = '') {
  const request = hex(encode({ topic, data: unhex(data) }))
  const peers = node.getPeers().map(String).filter(peer => peer !== from)
  return Promise.all(peers.map(peer => ask({ peer, method: 'gossip', request })))
}

// --- chunks.md -------------------------------------------------------------------------------------------------------

const CHUNKS = '/echo2/chunks/1'
const DOWNLOADER_LIMIT = 20544
const HOLDER_LIMIT = (1 << 20) + 4096
const OUTSTANDING = 64
const SIGN_OF_LIFE = 4000

const leaf = chunk => blake3(Buffer.concat([Buffer.of(0), chunk]))
const inner = (left, right) => blake3(Buffer.concat([Buffer.of(1), left, right]))
const count = manifest => Math.ceil(manifest.length / manifest.chunk_size)

/** Whether chunk and proof lead to the manifest's root. */
function verifies (manifest, index, proof, data) {
  const offset = index * manifest.chunk_size
  if (data.length !== Math.min(manifest.chunk_size, manifest.length - offset)) return false
  const rest = [...proof]
  let [digest, place, size] = [leaf(data), index, count(manifest)]
  while (size > 1) {
    if ((place ^ 1) < size) {
      const sibling = rest.shift()
      if (sibling === undefined) return false
      digest = place & 1 ? inner(sibling, digest) : inner(digest, sibling)
    }
    place >>= 1
    size = (size + 1) >> 1
  }
  return rest.length === 0 && hex(digest) === manifest.chunk_root
}

function prove (leaves, index) {
  const proof = []
  for (let row = leaves; row.length > 1; row = risen(row), index >>= 1) {
    if ((index ^ 1) < row.length) proof.push(row[index ^ 1])
  }
  return proof
}

function risen (row) {
  const next = []
  for (let at = 0; at < row.length; at += 2) next.push(at + 1 < row.length ? inner(row[at], row[at + 1]) : row[at])
  return next
}

/** Take a whole payload from one holder, each chunk verified before it counts. */
async function fetch ({ peer, manifest, path }) {
  const stream = await node.dialProtocol(ids.get(peer), CHUNKS)
  const frames = new Frames(stream)
  const want = indices => frames.send(encode(['w', indices]))
  const chunks = new Array(count(manifest))
  const asked = new Set()
  const askOn = async arrived => {
    const more = []
    while (asked.size < chunks.length && asked.size - arrived < OUTSTANDING) {
      more.push(asked.size)
      asked.add(asked.size)
    }
    if (more.length > 0) await want(more)
  }
  await frames.send(encode(['a', unhex(manifest.hash)]))
  await beating(SIGN_OF_LIFE, () => want([]), (async () => {
    await askOn(0)
    for (let arrived = 0; arrived < chunks.length;) {
      const frame = await frames.receive(HOLDER_LIMIT)
      if (frame === null) throw new Error('the holder has withdrawn the payload')
      const [letter, ...fields] = decode(frame)
      if (letter === 'g') throw new Error(`chunk ${fields[0]} is gone`)
      if (letter !== 'c') continue
      const [index, proof, data] = fields
      if (!asked.has(index) || !verifies(manifest, index, proof, data)) throw new Error(`a bad chunk ${index}`)
      chunks[index] = data
      await askOn(++arrived)
    }
  })())
  await stream.close()
  const whole = Buffer.concat(chunks)
  if (hex(blake3(whole)) !== manifest.hash) throw new Error('the whole is not the payload')
  await writeFile(path, whole)
  return chunks.length
}

const held = new Map() // hash of a payload -> the promise of its pieces and their leaves

function promised (hash) {
  if (!held.has(hash)) held.set(hash, Promise.withResolvers())
  return held.get(hash)
}

async function hold ({ manifest, path }) {
  const content = await readFile(path)
  const pieces = Array.from({ length: count(manifest) }, (_, index) =>
    content.subarray(index * manifest.chunk_size, (index + 1) * manifest.chunk_size))
  promised(manifest.hash).resolve({ pieces, leaves: pieces.map(leaf) })
}

async function serve (stream) {
  const frames = new Frames(stream)
  const send = (...message) => frames.send(encode(message))
  try {
    const [letter, payload] = decode(await frames.receive(DOWNLOADER_LIMIT))
    if (letter !== 'a' || payload?.length !== 32) throw new Error('a chunk stream begins with Ask')
    await send('n', [])
    await beating(SIGN_OF_LIFE, () => send('n', []), (async () => {
      const found = await promised(hex(payload)).promise
      await send('h', bitmap(found.pieces.length))
      for (let frame; (frame = await frames.receive(DOWNLOADER_LIMIT)) !== null;) {
        const [letter, indices] = decode(frame)
        for (const index of letter === 'w' ? indices ?? [] : []) {
          const piece = found.pieces[index]
          await (piece ? send('c', index, prove(found.leaves, index), piece) : send('g', index))
        }
      }
    })())
    await stream.close()
  } catch (error) {
    stream.abort(error)
  }
}

function bitmap (chunks) {
  const bytes = new Uint8Array(Math.ceil(chunks / 8))
  for (let index = 0; index < chunks; index++) bytes[index >> 3] |= 1 << (index & 7)
  return bytes
}

// --- the peer itself -------------------------------------------------------------------------------------------------

const ids = new Map() // text -> peer id, of all that were ever connected
const key = await generateKeyPair('Ed25519')
const node = await createLibp2p({
  privateKey: key,
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  connectionGater: { denyDialMultiaddr: () => false }, // loopback
  services: {
    identify: identify(),
    ping: ping()
  }
})

const COMMANDS = {
  dial: async ({ address }) => (await node.dial(multiaddr(address))).remotePeer.toString(),
  ping: async ({ peer }) => node.services.ping.ping(ids.get(peer)),
  protocols: async ({ peer }) => (await node.peerStore.get(ids.get(peer))).protocols,
  push: async command => (await push(command)).length,
  muxer: async ({ peer }) => node.getConnections(ids.get(peer)).map(connection => connection.multiplexer),
  subscribe: async command => subscribe(command),
  ask,
  hello,
  fetch,
  hold
}

node.addEventListener('peer:connect', event => {
  ids.set(event.detail.toString(), event.detail)
  tell({ event: 'connected', peer: event.detail.toString() })
})
node.addEventListener('peer:identify', event => {
  const { peerId, protocols } = event.detail
  tell({ event: 'identified', peer: peerId.toString(), protocols })
})
await node.handle(RPC, answer)
await node.handle(CHUNKS, serve)
tell({ event: 'ready', peer: node.peerId.toString(), addresses: node.getMultiaddrs().map(String) })

const obey = async ({ id, do: what, ...rest }) => {
  try {
    tell({ id, ok: await COMMANDS[what](rest) ?? null })
  } catch (error) {
    tell({ id, error: String(error?.message ?? error) })
  }
}
for await (const line of createInterface({ input: process.stdin })) obey(JSON.parse(line))
await node.stop()
