// A client of `llmsession serve` without dependencies: it sends, streams, interrupts and resumes.
// Protocol: docs/reference/wire.md. Usage: node node_client.mjs unix:/run/llmsession.sock [TOKEN [MODEL]]
import net from "node:net";
import { randomUUID } from "node:crypto";

export class Client {
  constructor(address, token) {
    this.useAddress(address);
    this.token = token;
    this.pending = new Map(); // id -> {command, resolve, reject}: commands without an answer
    this.subscriptions = new Map(); // id -> {session, cursor, onEvent}: they continue after a reconnect
    [this.lastId, this.delay] = [0, 50];
    this.welcomed = new Promise((resolve, reject) => Object.assign(this, { onWelcome: resolve, onRefusal: reject }));
    this.welcomed.catch(() => {}); // the promise may be unused: the error also rejects all pending commands
  }
  useAddress(address) {
    const tcp = /^tcp:\/\/(.+):(\d+)$/.exec(address);
    this.where = tcp ? { host: tcp[1], port: +tcp[2] } : { path: address.replace(/^unix:/, "") };
  }
  connect() {
    this.socket = net.connect(this.where);
    let rest = "";
    this.socket.setEncoding("utf8");
    this.socket.on("connect", () => this.write({ type: "hello", versions: [2], token: this.token || undefined }));
    this.socket.on("data", (text) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) this.receive(JSON.parse(line));
    });
    this.socket.on("error", (error) => {
      if (!this.wasReady) this.fail(error); // the first connection failed; a later loss is handled at "close"
    });
    this.socket.on("close", () => {
      this.ready = false;
      if (this.closed) return;
      setTimeout(() => this.connect(), this.delay * (0.5 + Math.random() / 2));
      this.delay = Math.min(2 * this.delay, 2000);
    });
    return this;
  }
  write(message) {
    this.socket.write(JSON.stringify(message) + "\n");
  }
  receive(message) {
    const { type, id, retry_after_s: hint } = message;
    if (type === "ping") this.write({ type: "pong" });
    else if (type === "welcome") {
      [this.ready, this.wasReady, this.delay] = [true, true, 50];
      this.onWelcome(message);
      if (this.sentFor) this.write({ type: "open", id: ++this.lastId, session: this.sentFor, here: true });
      this.sentFor = undefined;
      for (const [subscribed, { session, cursor }] of this.subscriptions)
        this.write({ type: "subscribe", id: subscribed, session, after: cursor });
      for (const { command } of this.pending.values()) this.write(command); // safe to repeat: the ids are the same
    } else if (type === "event") {
      const subscription = this.subscriptions.get(message.subscription);
      if (subscription && message.seq) subscription.cursor = message.seq;
      subscription?.onEvent(message);
    } else if (type === "ended" && message.moved && this.subscriptions.has(message.subscription)) {
      const subscription = this.subscriptions.get(message.subscription);
      subscription.cursor = message.cursor; // in a cluster the answer says where it goes on
      this.write({ type: "subscribe", id: message.subscription, session: subscription.session, after: message.cursor });
    } else if (type === "error" && (this.pending.has(id) || this.subscriptions.has(id)) && message.details?.address) {
      this.useAddress(message.details.address); // another host serves the session: what is open is sent there
      this.sentFor = this.subscriptions.get(id)?.session ?? this.pending.get(id).command.session; // it is told who sent us
      this.socket.destroy();
    } else if (type === "lagged" || type === "ended") {
      this.subscriptions.get(message.subscription)?.onEvent(message);
      this.subscriptions.delete(message.subscription);
    } else if (type === "error" && id === undefined && !message.retryable) {
      this.fail(Object.assign(new Error(message.message), message)); // the connection was refused, for example for its token: reconnecting would not help
    } else if (type === "reply" || type === "error") {
      const [request, socket] = [this.pending.get(id), this.socket];
      if (request && message.code === "Overloaded" && hint && Date.now() < request.until) // it was not performed
        return setTimeout(() => socket === this.socket && this.write(request.command), hint * (1000 + 500 * Math.random()));
      this.pending.delete(id);
      if (type === "error") request?.reject(Object.assign(new Error(message.message), message));
      else request?.resolve(message.body);
    }
  }
  fail(error) {
    this.closed = true;
    this.onRefusal(error);
    for (const { reject } of this.pending.values()) reject(error);
  }
  ask(type, fields) {
    const command = { type, id: ++this.lastId, ...fields };
    return new Promise((resolve, reject) => {
      this.pending.set(command.id, { command, resolve, reject, until: Date.now() + 30_000 });
      if (this.ready) this.write(command);
    });
  }
  change(type, fields) {
    return this.ask(type, { command_id: randomUUID(), ...fields });
  }
  subscribe(session, after, onEvent) {
    const id = ++this.lastId;
    this.subscriptions.set(id, { session, cursor: after, onEvent });
    if (this.ready) this.write({ type: "subscribe", id, session, after });
  }
  close() {
    this.closed = true;
    this.socket.end(JSON.stringify({ type: "goodbye" }) + "\n");
  }
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [address, token, named] = process.argv.slice(2);
  const client = new Client(address, token).connect();
  try {
    const model = named ?? (await client.welcomed).default_model; // a model that this service has
    if (!model) throw new Error("the service has no default model: name one as the third argument");
    const { session } = await client.change("create", { session: randomUUID(), config: { model } });
    client.subscribe(session, 0, ({ seq, kind, body, offset = 0 }) => {
      if (seq) console.log(seq, kind);
      else if (offset === 0 && body?.text) console.log("-", body.text);
    });
    const first = await client.change("send", { session, content: "hello" });
    client.socket.destroy(); // simulates a network failure: the client reconnects and continues
    const { status, error, messages } = await client.ask("outcome", { session, turn: first.turn });
    if (status !== "committed") throw new Error(`the turn ${status}: ${error}`);
    console.log("said", messages.at(-1).content.map(({ text = "" }) => text).join(""));
    const second = await client.change("send", { session, content: "a long text" });
    console.log("interrupt", (await client.change("interrupt", { session, turn: second.turn })).result);
  } catch (error) {
    console.error(`${error.code ?? "Error"}: ${error.message}`);
    process.exitCode = 1;
  } finally {
    client.close();
  }
}
