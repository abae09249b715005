// Runs the page's own scripts over a document of the few parts that they use, and plays steps on it.
// node page.js PAGE < {"answers": {route: [{status, body, held}]}, "steps": [...]}; prints what was seen.
"use strict";
const fs = require("fs");
const vm = require("vm");

class Element {
  constructor(tag, attributes = {}) {
    Object.assign(this, {tag, attributes, children: [], style: {}, listeners: {}, own: ""});
    Object.assign(this, {hidden: "hidden" in attributes, value: attributes.value || "", className: "", checked: false, disabled: false});
  }
  get textContent() { return this.own + this.children.map(c => typeof c === "string" ? c : c.textContent).join(""); }
  set textContent(text) { this.own = String(text); this.children = []; }
  append(...nodes) { this.children.push(...nodes); }
  prepend(...nodes) { this.children.unshift(...nodes); }
  replaceChildren(...nodes) {
    this.own = ""; this.children = nodes;
    if (this.tag === "select") this.value = nodes.length ? nodes[0].textContent : "";
  }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(kind, act) { (this.listeners[kind] ||= []).push(act); }
  fire(kind, more = {}) {
    const event = {target: this, key: "", preventDefault() {}, ...more};
    return Promise.all((this.listeners[kind] || []).map(act => act(event)));
  }
  click() { if (this.tag === "a" && this.download) downloads.push({name: this.download, text: blobs[this.href]}); return this.fire("click"); }
  all() { return [this, ...this.children.flatMap(c => typeof c === "string" ? [] : c.all())]; }
  seen() {  // as [tag, class, text or children]
    const inner = this.children.length ? this.children.map(c => typeof c === "string" ? c : c.seen()) : this.own;
    return [this.tag, this.className, inner];
  }
}

const html = fs.readFileSync(process.argv[2], "utf8");
const given = JSON.parse(fs.readFileSync(0, "utf8"));
const byId = {};
for (const [, tag, rest] of html.split("<script")[0].matchAll(/<(\w+)([^>]*\bid="[^>]*)>/g)) {
  const attributes = Object.fromEntries([...rest.matchAll(/([\w-]+)(?:="([^"]*)")?/g)].map(m => [m[1], m[2] ?? ""]));
  byId[attributes.id] = new Element(tag, attributes);
}
const requests = [], downloads = [], blobs = {}, held = [];
const document = {
  title: "",
  getElementById: id => { if (!byId[id]) throw new Error(`no element ${id}`); return byId[id]; },
  createElement: tag => new Element(tag),
  querySelector(selector) {
    const [, name, wanted] = selector.match(/^input\[name=(\w+)\](?:\[value="(\w+)"\]|:checked)$/);
    return Object.values(byId).flatMap(e => e.all()).find(e =>
      e.tag === "input" && e.name === name && (wanted ? e.value === wanted : e.checked)) || null;
  },
};
async function fetch(route, options = {}) {
  requests.push({route, method: options.method || "GET", headers: options.headers || {}, body: options.body ? JSON.parse(options.body) : null});
  const waiting = given.answers[route] || [{status: 404, body: {error: {message: "no such route"}}}];
  const answer = waiting.length > 1 ? waiting.shift() : waiting[0];
  if (answer.held) await new Promise(resolve => held.push(resolve));
  if (answer.lost) throw new Error("lost");
  return {ok: answer.status < 400, status: answer.status, json: async () => structuredClone(answer.body), text: async () => String(answer.body)};
}
class Kept { constructor(parts) { this.text = parts.join(""); } }
const address = {createObjectURL(blob) { const name = `blob:${Object.keys(blobs).length}`; blobs[name] = blob.text; return name; }, revokeObjectURL() {}};
const world = vm.createContext({
  document, fetch, location: {hash: given.hash || "", assign: place => downloads.push({name: "location", text: blobs[place]})},
  Blob: Kept, URL: address, URLSearchParams, CSS: {escape: text => text}, performance, Intl, setTimeout: () => 0, console,
});
const settle = async () => { for (let n = 0; n < 50; n += 1) await new Promise(setImmediate); };
const look = () => ({
  title: document.title, heading: byId.heading.textContent, about: byId.about.textContent, judged: byId.judged.textContent,
  languages: byId.languages.seen(), status: byId.status.textContent, answers: byId.answers.seen(),
  placeholder: byId.text.placeholder, examples: byId.examples.children.map(c => [c.lang, c.textContent, c.title]),
  foot: byId.foot.textContent, busy: byId.go.disabled, modes: byId.modes.textContent,
});

(async () => {
  for (const [, script] of html.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)) vm.runInContext(script, world);
  await settle();
  const seen = [look()];
  const result = {};
  for (const step of given.steps || []) {
    if (step.set) for (const [id, value] of Object.entries(step.set)) Object.assign(byId[id], typeof value === "boolean" ? {checked: value} : {value});
    if (step.change) byId[step.change].fire("change");
    if (step.mode) {
      const radio = document.querySelector(`input[name=mode][value="${step.mode}"]`);
      byId.modes.all().forEach(e => { if (e.tag === "input") e.checked = false; });
      radio.checked = true;
      radio.fire("change");
    }
    if (step.go) byId.form.fire("submit");
    if (step.release) held.splice(0).forEach(resolve => resolve());
    if (step.press) Object.values(byId).flatMap(e => e.all()).find(e => e.tag === "button" && e.textContent === step.press).click();
    if (step.follow) byId.foot.fire("click", {target: {href: `http://x/${step.follow}`}});
    if (step.call) result[step.call.name] = vm.runInContext(`(${step.call.code})`, world)(...step.call.given);
    await settle();
    seen.push(look());
  }
  console.log(JSON.stringify({seen, requests, downloads, result}));
})().catch(error => { console.error(error); process.exit(1); });
