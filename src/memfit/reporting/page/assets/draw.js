"use strict";
// Drawing, and the words for numbers. Nothing here knows the page's elements.

const draw = (() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name.replace(/ /g, "-")).trim();

  function bytes(n) {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
      if (Math.abs(n) >= size) return (n / size).toFixed(2) + " " + unit;
    return Math.round(n) + " B";
  }

  // Of an axis: without the digits that say nothing.
  const mark = (n) => bytes(n).replace(/\.00 /, " ").replace(/(\.\d)0 /, "$1 ");
  const percent = (n) => `${+n.toPrecision(3)} %`;

  function time(us) {
    if (us >= 1e6) return (us / 1e6).toFixed(2) + " s";
    return us >= 1e3 ? (us / 1e3).toFixed(2) + " ms" : us.toFixed(1) + " us";
  }

  const share = (part) => (part >= 0 ? "+" : "") + (100 * part).toFixed(1) + " %";

  // A canvas as large as its element, in the screen's own pixels; painted again when the element or the colours change.
  // Returns what shows it anew with other marks over what was painted.
  function canvas(element, height, paint, mark = () => {}) {
    const still = document.createElement("canvas"), scaled = (canvas) => {
      const context = canvas.getContext("2d"), scale = window.devicePixelRatio || 1;
      context.setTransform(scale, 0, 0, scale, 0, 0);
      return context;
    };
    const show = () => {
      const context = scaled(element), width = element.clientWidth;
      context.clearRect(0, 0, width, height);
      context.drawImage(still, 0, 0, width, height);
      mark(context);
    };
    const repaint = () => {
      const scale = window.devicePixelRatio || 1, width = element.clientWidth;
      element.style.height = height + "px";
      for (const canvas of [element, still]) [canvas.width, canvas.height] = [Math.max(width * scale, 1), height * scale];
      paint(scaled(still), width, height);
      show();
    };
    new ResizeObserver(repaint).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    return show;
  }

  // Sums from below: band k lies between sums k - 1 and k.
  function stacked(rows) {
    const sums = [];
    for (const row of rows) sums.push(row.map((value, i) => value + (sums.length ? sums[sums.length - 1][i] : 0)));
    return sums;
  }

  // Steps of an axis of bytes: those that are short in its units.
  const steps = Array.from({ length: 50 }, (_, k) => 2 ** k);

  return { colour, bytes, mark, percent, time, share, canvas, stacked, steps };
})();
