"use strict";
// Draws the panels of the page with uPlot. Everything comes from the block "data"; nothing is fetched.
(() => {
  const content = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const charts = new Map();
  const settings = { axis: "step", smooth: 0, log: false };
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const several = content.runs.length > 1;

  // Steps as epochs or seconds: between the places that are known, a straight line.
  const placed = (run, step) => {
    if (settings.axis === "step") return step;
    const [steps, values] = content.axes[run][settings.axis];
    let low = 0, high = steps.length - 1;
    if (high < 1 || step >= steps[high]) return values[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    const share = (step - steps[low]) / Math.max(steps[high] - steps[low], 1e-9);
    return values[low] + share * (values[high] - values[low]);
  };

  // An exponential mean that begins at the first value, not at zero.
  const smoothed = (values, amount) => {
    let mean = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = amount * mean + (1 - amount) * value;
      weight = amount * weight + (1 - amount);
      return mean / weight;
    });
  };

  const extreme = (value) => Math.abs(value) >= 1e9 || (value !== 0 && Math.abs(value) < 1e-4);
  const number = (value) => value === null || value === undefined ? "–"
    : extreme(value) ? value.toExponential(3)
    : Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en-US")
    : String(+value.toPrecision(5));

  // Beside an axis: as short as can be, and with the digits in which two neighbours differ.
  const tick = (value) => {
    if (value === null || value === undefined) return "";
    const clean = +value.toPrecision(8);
    return extreme(clean) ? clean.toExponential() : Math.abs(clean) >= 1e4 ? clean.toLocaleString("en-US") : String(clean);
  };
  const room = (_, labels) => Math.max(62, 20 + 7.2 * Math.max(0, ...(labels ?? []).map((label) => label.length)));

  const tables = (panel) => {
    const found = [], lines = [];
    panel.curves.forEach((curve, index) => {
      const x = curve.x.map((step) => placed(curve.run, step));
      const usable = settings.log ? curve.y.map((y) => y !== null && y > 0 ? y : null) : curve.y;
      const stroke = colour("--c" + (several ? curve.run % 8 : index % 8));
      const label = several ? content.runs[curve.run] + " " + curve.name : curve.name;
      const dash = several && /\(batches\)$|^train\//.test(curve.name) ? [4, 3] : undefined;
      const points = { show: curve.x.length < 2, size: 6 };
      const batches = curve.name.endsWith("(batches)");
      if (settings.smooth > 0 && curve.x.length > 2) {
        found.push([x, usable]);
        lines.push({ label: label + " raw", stroke: stroke + "40", width: 1, points, spanGaps: true, faint: true });
        found.push([x, smoothed(usable, settings.smooth)]);
        lines.push({ label, stroke, width: 2, points, dash, spanGaps: true });
      } else {
        found.push([x, usable]);
        lines.push({ label, stroke: batches ? stroke + "90" : stroke, width: batches ? 1 : 1.75, points, dash, spanGaps: true });
      }
    });
    return [ordered(found), lines];
  };

  // uPlot wants places in ascending order; a run that was begun anew goes back.
  const ordered = (found) => found.map(([x, y]) => {
    if (x.every((value, index) => index === 0 || x[index - 1] < value)) return [x, y];
    const latest = new Map();
    x.forEach((value, index) => latest.set(value, y[index]));
    const pairs = [...latest].sort((a, b) => a[0] - b[0]);
    return [pairs.map((pair) => pair[0]), pairs.map((pair) => pair[1])];
  });

  // A curve that is nothing but zeros would else be drawn on an axis from 0 to 100.
  const span = (_, low, high) => low === null || low === undefined ? [null, null]
    : low === 0 && high === 0 ? [-1, 1] : uPlot.rangeNum(low, high, 0.1, true);
  const whole = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

  const draw = (box) => {
    const panel = content.panels[+box.dataset.panel];
    const place = box.querySelector(".chart");
    const [found, lines] = tables(panel);
    const joined = found.length > 1 ? uPlot.join(found) : found[0];
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const options = {
      width: Math.max(place.clientWidth, 200),
      height: 230,
      scales: { x: { time: false }, y: settings.log ? { distr: 3 } : { range: span } },
      axes: [settings.axis === "seconds" ? axis : { ...axis, incrs: whole }, { ...axis, size: room, values: (_, ticks) => ticks.map(tick) }],
      cursor: { sync: { key: "report", setSeries: false }, drag: { x: true, y: false }, dataIdx: nearest },
      legend: { live: true, markers: { dash: (_, index) => lines[index - 1]?.dash ? "dashed" : "solid" } },
      series: [{ label: settings.axis, value: (_, value) => number(value) },
        ...lines.map((line) => ({ ...line, value: (_, value) => number(value) }))],
    };
    charts.get(box)?.destroy();
    const chart = new uPlot(options, joined, place);
    charts.set(box, chart);
    chart.root.querySelectorAll(".u-legend .u-series").forEach((row, index) => {
      if (index > 0 && lines[index - 1].faint) row.style.display = "none";
    });
  };

  // Curves have values at different places: the hover shows for each the nearest it has.
  const nearest = (chart, series, index) => {
    const values = chart.data[series];
    if (series === 0 || values[index] !== null && values[index] !== undefined) return index;
    for (let away = 1; away < values.length; away++) {
      for (const other of [index - away, index + away]) {
        if (values[other] !== null && values[other] !== undefined) return other;
      }
    }
    return index;
  };

  const again = () => charts.forEach((_, box) => draw(box));
  const boxes = document.querySelectorAll(".panel");
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (entry.isIntersecting && !charts.has(entry.target)) {
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }), { rootMargin: "300px" });
  boxes.forEach((box) => seen.observe(box));

  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => charts.forEach((chart, box) => chart.setSize({ width: box.querySelector(".chart").clientWidth, height: 230 })), 100);
  });

  const control = (id, event, take) => document.getElementById(id)?.addEventListener(event, (e) => { take(e.target); again(); });
  control("axis", "change", (input) => { settings.axis = input.value; });
  control("log", "change", (input) => { settings.log = input.checked; });
  control("smooth", "input", (input) => { settings.smooth = +input.value; input.nextElementSibling.value = input.value; });

  document.querySelectorAll(".gallery img").forEach((image) => {
    image.addEventListener("click", () => image.parentElement.classList.toggle("large"));
  });

  const paint = () => {
    document.querySelectorAll(".swatch").forEach((swatch) => { swatch.style.background = colour("--c" + (+swatch.dataset.run % 8)); });
    again();
  };
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    paint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
  window.report = { charts, settings, content };
})();
