"use strict";
// The page's pictures. What comes from a trace is only ever written as text.

(async () => {
  const by = (id) => document.getElementById(id);
  const packed = Uint8Array.from(atob(by("data").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = JSON.parse(await new Response(unpacked).text());
  const { ops, storages, texts, lanes, boxes } = data;
  const count = ops.name.length;
  const phases = ["forward", "backward", "optimizer"];
  const opText = (op) => `op ${op} ${texts[ops.name[op]]} (${phases[ops.phase[op]]}, ${texts[ops.source[op]]})`;
  const storageText = (s) => `${texts[storages.category[s]]} #${s}, ${draw.bytes(storages.size[s])}, ${texts[storages.source[s]]}`;
  for (const section of document.querySelectorAll(".drawn")) section.hidden = false;

  function memory() {
    const names = Object.keys(data.live), sums = draw.stacked(names.map((name) => data.live[name]));
    const rows = [Array.from({ length: count }, (_, op) => op), ...sums];
    const series = [{ label: "op" }];
    names.forEach((name, k) => series.push({
      label: name, stroke: draw.colour(name), width: 1, fill: draw.colour(name) + "66", points: { show: false },
      value: (_, __, ___, i) => (i == null ? "-" : draw.bytes(data.live[name][i])),
    }));
    const bands = names.slice(1).map((_, k) => ({ series: [k + 2, k + 1] }));
    const line = (label, values, name, dash) => {
      rows.push(values);
      series.push({ label, stroke: draw.colour(name), dash, width: 2, points: { show: false },
        value: (_, v) => (v == null ? "-" : draw.bytes(v)) });
    };
    if (data.arena) line("in the arena, by plan", data.arena, "ink");
    if (data.budget != null) line("budget", new Array(count).fill(data.budget), "budget", [8, 4]);
    line("floor", new Array(count).fill(data.floor), "soft", [3, 4]);
    const axis = { stroke: draw.colour("ink"), grid: { stroke: draw.colour("line") }, ticks: { stroke: draw.colour("line") } };
    const plot = new uPlot({
      width: by("memory").clientWidth, height: 340, series, bands,
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, most * 1.05] } },
      axes: [axis, { ...axis, size: 78, incrs: draw.steps, values: (_, marks) => marks.map(draw.mark) }],
      hooks: { setCursor: [(u) => u.cursor.idx != null && tellOp(u.cursor.idx)] },
    }, rows, by("memory"));
    new ResizeObserver(() => plot.setSize({ width: by("memory").clientWidth, height: 340 })).observe(by("memory"));
  }

  function tellOp(op) {
    const alive = [];
    for (let s = 0; s < storages.size.length; ++s) if (storages.alloc[s] <= op && op < storages.free[s]) alive.push(s);
    alive.sort((a, b) => storages.size[b] - storages.size[a]);
    const total = Object.values(data.live).reduce((sum, row) => sum + row[op], 0);
    by("at-op").textContent = [`${opText(op)}: ${draw.bytes(total)} alive (${total} bytes)`, ...alive.slice(0, 5).map(storageText)].join("\n");
  }

  function fate(s) {
    const swapped = data.fates.swapped[s] || [], dropped = data.fates.dropped[s] || [];
    const said = swapped.map(([after, before, returns]) =>
      `swapped out after op ${after}` + (returns ? `, back before op ${before}` : ", and not needed again"));
    for (const [after, before, runs] of dropped)
      said.push(runs ? `dropped after op ${after}, made again before op ${before} by ${runs} op${runs === 1 ? "" : "s"}`
        : `dropped after op ${after}, freed before op ${before}`);
    return said.length ? said.join("\n") : lanes.length ? "kept in the arena" : "no plan";
  }

  // The gap in which it leaves, or its widest one, and why; nothing for a storage that is always in use.
  function widest(s) {
    if (!data.gaps[s]) return ["without a gap"];
    const [after, before, us, why] = data.gaps[s];
    return [`largest gap: ${draw.time(us)}, after op ${after} and before op ${before}` + (texts[why] ? `: ${texts[why]}` : "")];
  }

  function addresses() {
    const element = by("addresses"), order = boxes.storage.map((_, i) => i).sort((a, b) => boxes.begin[a] - boxes.begin[b]);
    let chosen = -1, across = 1, upwards = 1, high = 380;
    const rectangle = (i) => {
      const x = boxes.begin[i] * across, y = high - (boxes.offset[i] + storages.size[boxes.storage[i]]) * upwards;
      return [x, y, Math.max((boxes.end[i] - boxes.begin[i]) * across, 1), Math.max(storages.size[boxes.storage[i]] * upwards, 1)];
    };
    const show = draw.canvas(element, high, (context, width, height) => {
      across = width / count;
      upwards = height / Math.max(boxes.footprint, 1);
      const colours = texts.map((text) => (text in data.live ? draw.colour(text) : ""));
      for (let i = 0; i < order.length; ++i) {
        context.fillStyle = colours[storages.category[boxes.storage[i]]];
        context.fillRect(...rectangle(i));
      }
    }, (context) => {
      if (chosen < 0) return;
      context.strokeStyle = draw.colour("ink");
      context.lineWidth = 2;
      context.strokeRect(...rectangle(chosen));
    });
    const choose = (i) => {
      chosen = i;
      const s = boxes.storage[i], module = texts[storages.module[s]];
      by("card").textContent = [storageText(s), ...(module ? [module] : []),
        `alive in ops ${storages.alloc[s]} to ${storages.free[s] - 1}, at address ${boxes.offset[i]} in ops ${boxes.begin[i]} to ${boxes.end[i] - 1}`,
        ...widest(s), fate(s)].join("\n");
      show();
    };
    element.addEventListener("click", (event) => {
      for (let i = boxes.storage.length - 1; i >= 0; --i) {
        const [x, y, w, h] = rectangle(i);
        if (x <= event.offsetX && event.offsetX <= x + w && y <= event.offsetY && event.offsetY <= y + h) return choose(i);
      }
    });
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || !order.length) return;
      event.preventDefault();
      choose(order[(order.indexOf(chosen) + step + order.length) % order.length]);
    });
  }

  function timelines() {
    const element = by("lanes"), rowHeight = 20, gap = 26, titles = ["ops", "out", "in"];
    const height = lanes.length * (titles.length * (rowHeight + 4) + gap);
    const most = Math.max(...lanes.map((lane) => lane.us));
    const top = (number, row) => number * (titles.length * (rowHeight + 4) + gap) + gap - 6 + row * (rowHeight + 4);
    let across = 1;
    draw.canvas(element, height, (context, width) => {
      across = (width - 40) / most;
      const colours = Object.fromEntries(["parameter", "again", "gradient", "activation", "stall"].map((name) => [name, draw.colour(name)]));
      const bar = (name, number, row, begin, end) => {
        context.fillStyle = colours[name];
        context.fillRect(40 + begin * across, top(number, row), Math.max((end - begin) * across, 0.6), rowHeight);
      };
      lanes.forEach((lane, number) => {
        context.fillStyle = draw.colour("ink");
        context.font = "12px system-ui, sans-serif";
        context.fillText(`${lane.title}: ${draw.time(lane.us)}`, 0, top(number, 0) - 6);
        titles.forEach((title, row) => context.fillText(title, 0, top(number, row) + 14));
        lane.start.forEach((start, i) => bar(lane.again[i] ? "again" : "parameter", number, 0, start, lane.end[i]));
        const copies = lane.copies;
        copies.start.forEach((start, i) => bar(copies.out[i] ? "gradient" : "activation", number, copies.out[i] ? 1 : 2, start, copies.end[i]));
        lane.stalls.op.forEach((op, i) => bar("stall", number, 0, lane.start[op] - lane.stalls.us[i], lane.start[op]));
      });
    });
    element.addEventListener("mousemove", (event) => {
      lanes.forEach((lane, number) => {
        const us = (event.offsetX - 40) / across, row = titles.findIndex((_, r) => Math.abs(event.offsetY - top(number, r) - rowHeight / 2) <= rowHeight / 2);
        if (row < 0) return;
        by("at-time").textContent = row === 0 ? opAt(lane, us) : copyAt(lane, us, row === 1);
      });
    });
  }

  function opAt(lane, us) {
    const i = lane.start.findIndex((start, k) => start <= us && us < lane.end[k]);
    return i < 0 ? draw.time(us) : `${lane.title}, ${draw.time(us)}: ${opText(lane.op[i])}${lane.again[i] ? ", again" : ""}`;
  }

  function copyAt(lane, us, out) {
    const { copies } = lane, i = copies.start.findIndex((start, k) => copies.out[k] === +out && start <= us && us < copies.end[k]);
    return i < 0 ? draw.time(us) : `${lane.title}, ${draw.time(us)}: ${out ? "out" : "in"}, ${storageText(copies.storage[i])}`;
  }

  function whatIf() {
    const { budgets, added } = data.whatIf, slider = by("slider");
    const least = budgets[budgets.length - 1], most = budgets[0];
    const known = budgets.map((b, i) => [b, added[i]]).filter(([, a]) => a != null).reverse();
    const cost = (budget) => {
      if (budget < data.floor) return null;
      const next = known.findIndex(([b]) => b >= budget);
      if (next < 0) return known.length ? known[known.length - 1][1] : null;
      const [high, atHigh] = known[next];
      if (high === budget || next === 0) return high === budget ? atHigh : null;
      const [low, atLow] = known[next - 1];
      return atLow + ((atHigh - atLow) * (budget - low)) / (high - low);
    };
    const tell = () => {
      const budget = Math.round(data.floor * 0.9 + (most - data.floor * 0.9) * (slider.value / 1000)), found = cost(budget);
      const exact = budgets.includes(budget) ? "" : ", interpolated";
      by("cost").textContent = `${draw.bytes(budget)} (${((100 * budget) / data.peak).toFixed(0)} % of the peak): ` + (found == null
        ? `no plan: ${opText(data.floorOp)} needs ${draw.bytes(data.floor)}` : `${draw.share(found)} time${exact}`);
    };
    slider.addEventListener("input", tell);
    const axis = { stroke: draw.colour("ink"), grid: { stroke: draw.colour("line") } };
    const plot = new uPlot({
      width: by("curve").clientWidth, height: 240, legend: { show: false }, scales: { x: { time: false } },
      series: [{}, { stroke: draw.colour("budget"), width: 2, points: { show: true } }],
      axes: [{ ...axis, incrs: draw.steps, values: (_, marks) => marks.map(draw.mark) }, { ...axis, size: 60, values: (_, marks) => marks.map(draw.percent) }],
    }, [known.map(([b]) => b), known.map(([, a]) => 100 * a)], by("curve"));
    new ResizeObserver(() => plot.setSize({ width: by("curve").clientWidth, height: 240 })).observe(by("curve"));
    tell();
  }

  function against() {
    const { name, there, here } = data.against, length = Math.max(there.length, here.length);
    const spread = (row) => Array.from({ length }, (_, i) => row[Math.floor((i * row.length) / length)]);
    const axis = { stroke: draw.colour("ink"), grid: { stroke: draw.colour("line") } };
    const line = (label, colour) => ({ label, stroke: draw.colour(colour), width: 2, points: { show: false }, value: (_, v) => (v == null ? "-" : draw.bytes(v)) });
    const plot = new uPlot({
      width: by("against").clientWidth, height: 240, scales: { x: { time: false }, y: { range: (_, __, most) => [0, most * 1.05] } },
      series: [{ label: "% of the time", value: (_, v) => (v == null ? "-" : v.toFixed(0)) }, line(name, "soft"), line("here", "budget")],
      axes: [{ ...axis, values: (_, marks) => marks.map(draw.percent) }, { ...axis, size: 78, incrs: draw.steps, values: (_, marks) => marks.map(draw.mark) }],
    }, [Array.from({ length }, (_, i) => (100 * i) / length), spread(there), spread(here)], by("against"));
    new ResizeObserver(() => plot.setSize({ width: by("against").clientWidth, height: 240 })).observe(by("against"));
  }

  function sortable(table) {
    table.querySelectorAll("th").forEach((head, column) => {
      const button = document.createElement("button");
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const falls = head.dataset.sorted !== "down", body = table.tBodies[0], rows = [...body.rows];
        table.querySelectorAll("th").forEach((other) => delete other.dataset.sorted);
        head.dataset.sorted = falls ? "down" : "up";
        const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const compare = (a, b) => (isNaN(value(a)) ? value(b).localeCompare(value(a)) : value(b) - value(a));
        rows.sort((a, b) => (falls ? compare(a, b) : -compare(a, b)));
        body.replaceChildren(...rows);
      });
    });
  }

  memory();
  addresses();
  if (lanes.length) timelines();
  if (data.whatIf) whatIf();
  if (data.against) against();
  for (const table of document.querySelectorAll("table")) if (table.tHead) sortable(table);
  document.body.dataset.ready = "true";
})();
