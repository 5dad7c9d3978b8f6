"use strict";
const CELLS_SHOWN = 100;
const byId = id => document.getElementById(id);
const cells = new Map();
let last = null;

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function link(text, folder, file) {
  const made = element("a", text);
  made.href = "/file/" + folder + "/" + encodeURIComponent(file);
  return made;
}

function row(...parts) {
  const made = document.createElement("tr");
  for (const part of parts) {
    const cell = document.createElement("td");
    cell.append(...[part].flat());
    made.append(cell);
  }
  return made;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? h + " h " + m + " min" : m ? m + " min " + s + " s" : s + " s";
}

function links(cell) {
  const made = [link("record", "cells", cell.name + ".json")];
  if (cell.has_log) made.push(" ", link("log", "logs", cell.name + ".log"));
  return made;
}

function fill(id, rows) {
  byId(id).replaceChildren(...rows);
  byId(id + "-title").hidden = !rows.length;
}

function draw() {
  const { progress, ended, failed, left_s } = last;
  const all = progress ? progress.cells : 0;
  const done = progress ? progress.kept + progress.ended : ended;
  byId("bar").max = Math.max(all, done, 1);
  byId("bar").value = done;
  const words = [all ? done + " of " + all + " cells" : done + " cells"];
  if (failed) words.push(failed + " failed");
  if (left_s !== undefined) words.push("about " + duration(left_s) + " left");
  if (progress && progress.is_over) words.push("ended");
  byId("state").textContent = words.join(", ");
  document.title = (all ? done + "/" + all : done) + " cells";
  const running = progress ? Object.entries(progress.running) : [];
  fill("running", running.map(([name, since]) => row(name, duration(Date.now() / 1000 - since))));
  const list = [...cells.values()].reverse();
  fill("failed", list.filter(cell => cell.failure !== undefined)
    .map(cell => row([element("div", cell.name), ...links(cell)], element("pre", cell.failure))));
  fill("cells", list.slice(0, CELLS_SHOWN)
    .map(cell => row(cell.name, cell.took_s.toFixed(1) + " s", cell.figures, links(cell))));
}

const stream = new EventSource("/events");
stream.onopen = () => cells.clear();
stream.onmessage = event => {
  last = JSON.parse(event.data);
  for (const cell of last.cells) {
    cells.delete(cell.name);
    cells.set(cell.name, cell);
  }
  draw();
};
stream.onerror = () => { byId("state").textContent = "The server does not answer; trying again."; };
