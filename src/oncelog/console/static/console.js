// Keep the page up to date: the same address sends events with new content, and this script changes what differs.
"use strict";

const content = document.getElementById("content");
const live = document.getElementById("live");
const notice = document.getElementById("notice");

function parse(html) {
  return new DOMParser().parseFromString("<body>" + html, "text/html").body;
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id || node.getAttribute("href") || "" : "";
}

function alike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

// Change the attributes of `old` to those of `fresh`. What a person has entered stays.
function morphAttributes(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open" && name !== "data-shown") old.removeAttribute(name);
  }
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName === "FORM" && (old.contains(document.activeElement) || old.dataset.touched)) return;
  morphAttributes(old, fresh);
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const wanted = [...fresh.childNodes];
  let present = old.firstChild;
  for (const node of wanted) {
    let match = present;
    // A row that has moved up: drop what is before it, if it follows soon.
    for (let steps = 0; match && steps < 60 && !alike(match, node); steps += 1) match = match.nextSibling;
    if (match && alike(match, node)) {
      while (present !== match) {
        const gone = present;
        present = present.nextSibling;
        gone.remove();
      }
      morph(match, node);
      present = match.nextSibling;
    } else {
      old.insertBefore(document.importNode(node, true), present);
    }
  }
  while (present) {
    const gone = present;
    present = present.nextSibling;
    gone.remove();
  }
}

function say(state, words) {
  document.body.dataset.live = state;
  if (live.textContent !== words) live.textContent = words;
}

// On a narrow screen, begin with the newest part of a drawing that follows the end of its log.
function showEnds() {
  for (const box of content.querySelectorAll("[data-end]")) {
    if (!box.dataset.shown) box.scrollLeft = box.scrollWidth;
    box.dataset.shown = "1";
  }
}

function show(event) {
  const state = JSON.parse(event.data);
  morphChildren(content, parse(state.html));
  morphChildren(notice, parse(state.notice));
  content.removeAttribute("aria-busy");
  showEnds();
  const stale = state.notice !== "" || state.title === "";
  say(stale ? "stale" : "on", stale ? "no answer" : "live");
  if (state.title) document.title = state.title + " · oncelog";
  const at = document.getElementById("at");
  if (at) at.textContent = new Date(state.at).toISOString().slice(0, 19).replace("T", " ");
  document.getElementById("cost").textContent = state.cost;
  if (state.live) return;
  done = true;
  source.close();
  source = null;
}

let source = null;
let done = false; // a question does not change while somebody reads it

function connect() {
  if (source || done) return;
  source = new EventSource(location.href);
  source.addEventListener("page", show);
  source.onopen = () => say("on", "live");
  source.onerror = () => {
    say("lost", "connecting");
    if (source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(() => document.hidden || connect(), 2000);
    }
  };
}

// Nobody looks at a hidden page, so nothing is asked for it.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  if (done) return;
  if (source) source.close();
  source = null;
  say("waiting", "paused");
});
document.addEventListener("input", (event) => {
  if (event.target.form) event.target.form.dataset.touched = "1";
});

const copy = document.getElementById("copy");
if (copy && navigator.clipboard) {
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    const answer = await fetch(document.getElementById("json").href);
    await navigator.clipboard.writeText(await answer.text());
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy this page as JSON"), 1500);
  });
}
showEnds();
if (!document.hidden) connect();
