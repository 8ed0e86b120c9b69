// Interactive phase diagram: a map of all points, and a table and trajectories of one point. The pictures are drawn as
// SVG without a library. explorer_data.js has the results, explorer_paths.js (loaded last) the trajectories.
(() => {
  "use strict";
  const data = window.EXPLORER;
  const BRANCHES = {
    semantic: { own: "θ", color: "#0072B2", words: "semantic" },
    positional: { own: "m", color: "#D55E00", words: "positional" },
  };
  const STATUS = {
    converged: "found, with the requested accuracy",
    inaccurate: "found, less accurately than requested: its errors are larger",
    lost: "this branch does not exist here",
    max_iter: "not solved: the maximum number of iterations was reached",
  };
  const SIGNS = {
    q: "<i>q</i>", θ: "<i>θ</i>", m: "<i>m</i>", V: "<i>V</i>", "ε_t": "<i>ε</i><sub>t</sub>", "ε_g": "<i>ε</i><sub>g</sub>",
  };
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  const DIVERGING = ["#D55E00", "#FFFFFF", "#0072B2"];
  const MISSING = "#AAAAAA";
  const element = (id) => document.getElementById(`explorer-${id}`);
  const known = (x) => x !== null && x !== undefined;
  const value = (branch, name, i, j) => data[branch][name][i][j];
  const both = (name, i, j, f) => {
    const [s, p] = [value("semantic", name, i, j), value("positional", name, i, j)];
    return known(s) && known(p) ? f(s, p) : null;
  };
  // the branch of lower training loss, among the branches that exist
  const lowest = (i, j) => {
    const [s, p] = ["semantic", "positional"].map((branch) => value(branch, "train_loss", i, j));
    return known(s) && (!known(p) || s <= p) ? "semantic" : known(p) ? "positional" : null;
  };
  const ofLowest = (name) => (i, j) => (lowest(i, j) ? value(lowest(i, j), name, i, j) : null);
  const thousands = (pick) => (i, j) => (known(pick(i, j)) ? 1e3 * pick(i, j) : null);
  const gain = (i, j) => (lowest(i, j) ? data.baseline[j] - ofLowest("test_error")(i, j) : null);
  const QUANTITIES = [
    {
      name: "difference of the training losses", centered: true,
      label: `10³ [${SIGNS["ε_t"]}(positional) − ${SIGNS["ε_t"]}(semantic)]; blue: the semantic minimum is lower`,
      pick: thousands((i, j) => both("train_loss", i, j, (s, p) => p - s)),
    },
    {
      name: "gain over the linear baseline", centered: true,
      label: `10³ [<i>ε</i><sub>lin</sub> − ${SIGNS["ε_g"]}] of the lower minimum; blue: lower error than the baseline`,
      pick: thousands(gain),
    },
    {
      name: "test error of the lower minimum", label: `10³ ${SIGNS["ε_g"]} of the minimum with the lower training loss`,
      pick: thousands(ofLowest("test_error")),
    },
    { name: "overlap with the teacher, semantic branch", label: SIGNS.θ, pick: (i, j) => value("semantic", "own", i, j) },
    { name: "overlap with the positions, positional branch", label: SIGNS.m, pick: (i, j) => value("positional", "own", i, j) },
    { name: "replicon eigenvalue, semantic branch", label: "replicon eigenvalue", pick: (i, j) => value("semantic", "replicon", i, j) },
    { name: "replicon eigenvalue, positional branch", label: "replicon eigenvalue", pick: (i, j) => value("positional", "replicon", i, j) },
  ];
  const LINES = [
    ["alpha_c", "<i>α</i><sub>c</sub>: equal training losses", "", 3, "#222222"],
    ["alpha_l", "<i>α</i><sub>l</sub>: lower test error than the linear baseline above", "8 5", 2, "#222222"],
    ["semantic_from", "the semantic branch appears", "2 4", 3, BRANCHES.semantic.color],
    ["positional_to", "the positional branch ends", "2 4", 3, BRANCHES.positional.color],
  ];
  const number = (x, digits = 4) => (known(x) ? Number(x).toPrecision(digits) : "–");
  const withError = (x, error) => (known(x) ? `${number(x)} ± ${known(error) ? number(error, 1) : "?"}` : "–");
  const place = ({ i, j }) => `α = ${data.alphas[i].toFixed(2)}, ω = ${data.omegas[j].toFixed(2)}`;

  // --- drawing -------------------------------------------------------------------------------------------------------
  const svg = (name, attributes, parent, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, each] of Object.entries(attributes)) node.setAttribute(key, each);
    if (text !== undefined) node.textContent = text;
    parent?.appendChild(node);
    return node;
  };
  const blend = (colors, share) => {
    const at = Math.min(Math.max(share, 0), 1) * (colors.length - 1);
    const low = Math.min(Math.floor(at), colors.length - 2);
    const part = (color, k) => parseInt(color.slice(1 + 2 * k, 3 + 2 * k), 16);
    const mixed = [0, 1, 2].map((k) => Math.round((1 - at + low) * part(colors[low], k) + (at - low) * part(colors[low + 1], k)));
    return `rgb(${mixed.join(",")})`;
  };
  const ticks = (low, high, count) => {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((lead) => lead * power >= rough);
    const values = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) values.push(Number((k * step).toPrecision(8)));
    return values;
  };
  // a plot with axes; returns the picture and the functions from values to pixels
  const frame = (holder, { left, top, width, height, x, y, xLabel, yLabel, xTicks, yTicks }, picture) => {
    const toX = (v) => left + (width * (v - x[0])) / (x[1] - x[0]);
    const toY = (v) => top + height - (height * (v - y[0])) / (y[1] - y[0]);
    for (const v of xTicks) {
      svg("line", { class: "axis", x1: toX(v), x2: toX(v), y1: top + height, y2: top + height + 5 }, picture);
      svg("text", { x: toX(v), y: top + height + 19, "text-anchor": "middle" }, picture, v);
    }
    for (const v of yTicks) {
      svg("line", { class: "axis", x1: left - 5, x2: left, y1: toY(v), y2: toY(v) }, picture);
      svg("text", { x: left - 9, y: toY(v) + 4, "text-anchor": "end" }, picture, v);
    }
    svg("path", { class: "axis", d: `M${left} ${top}V${top + height}H${left + width}` }, picture);
    svg("text", { x: left + width / 2, y: top + height + 40, "text-anchor": "middle" }, picture, xLabel);
    svg("text", { transform: `translate(14 ${top + height / 2}) rotate(-90)`, "text-anchor": "middle" }, picture, yLabel);
    return { toX, toY };
  };
  const polyline = (picture, points, attributes) => {
    const parts = [];
    let open = false;
    for (const [px, py] of points) {
      if (known(py)) parts.push(`${open ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`);
      open = known(py);
    }
    return svg("path", { d: parts.join(""), fill: "none", ...attributes }, picture);
  };
  const picture = (holder, width, height, label) => {
    const shown = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    holder.replaceChildren(shown);
    return shown;
  };
  const swatch = (color, dash, width) =>
    `<svg width="34" height="12" aria-hidden="true"><line x1="1" x2="33" y1="6" y2="6" stroke="${color}" stroke-width="${width}" stroke-dasharray="${dash}"/></svg>`;
  const legend = (id, entries) => {
    element(id).innerHTML = entries.map(([mark, words]) => `<li>${mark} ${words}</li>`).join("");
  };
  const hint = (event, holder, lines) => {
    const box = element("hint");
    box.hidden = !lines;
    if (!lines) return;
    box.innerHTML = lines.join("<br>");
    const [outer, inner] = [element("map").parentElement.getBoundingClientRect(), box.getBoundingClientRect()];
    const x = Math.min(event.clientX - outer.left + 14, outer.width - inner.width - 4);
    box.style.left = `${Math.max(x, 0)}px`;
    box.style.top = `${event.clientY - outer.top + 14}px`;
  };

  // --- the map -------------------------------------------------------------------------------------------------------
  const drawMap = () => {
    const what = QUANTITIES[element("what").value];
    const holder = element("map");
    const width = Math.max(holder.clientWidth, 240);
    const height = width < 560 ? 380 : 470;
    const shown = picture(holder, width, height, `Phase diagram: ${what.name}. Chosen point: ${place(point)}`);
    const [stepX, stepY] = [data.omegas[1] - data.omegas[0], data.alphas[1] - data.alphas[0]];
    const x = [data.omegas[0] - stepX / 2, data.omegas.at(-1) + stepX / 2];
    const y = [data.alphas[0] - stepY / 2, data.alphas.at(-1) + stepY / 2];
    const box = { left: 52, top: 8, width: width - 60, height: height - 58, x, y };
    const all = data.alphas.map((_, i) => data.omegas.map((__, j) => what.pick(i, j)));
    const values = all.flat().filter(known);
    const size = Math.max(...values.map(Math.abs));
    const [low, high] = what.centered ? [-size, size] : [Math.min(...values), Math.max(...values)];
    const colors = what.centered ? DIVERGING : VIRIDIS;
    svg("rect", { x: box.left, y: box.top, width: box.width, height: box.height, fill: MISSING }, shown);
    const cells = svg("g", { class: "cells" }, shown);
    const [cellX, cellY] = [box.width / data.omegas.length, box.height / data.alphas.length];
    all.forEach((row, i) => row.forEach((v, j) => {
      if (!known(v)) return;
      const fill = blend(colors, (v - low) / (high - low));
      const [px, py] = [box.left + j * cellX, box.top + box.height - (i + 1) * cellY];
      svg("rect", { x: px + 0.5, y: py + 0.5, width: cellX - 1, height: cellY - 1, fill }, cells);
    }));
    const { toX, toY } = frame(holder, {
      ...box, xLabel: "positional fraction ω", yLabel: "samples per dimension α = n/d", xTicks: ticks(...x, 5), yTicks: ticks(...y, 8),
    }, shown);
    for (const [name, , dash, stroke, color] of LINES) {
      const points = data.probed.map((omega, k) => {
        const v = data.lines[name][k];
        return [toX(omega), known(v) && v <= y[1] ? toY(v) : null];
      });
      polyline(shown, points, { class: "boundary", stroke: color, "stroke-width": stroke, "stroke-dasharray": dash });
    }
    const center = { cx: toX(data.omegas[point.j]), cy: toY(data.alphas[point.i]), r: 8, fill: "none" };
    svg("circle", { ...center, stroke: "#FFFFFF", "stroke-width": 5 }, shown);
    svg("circle", { ...center, class: "point", stroke: "#000000", "stroke-width": 2.5 }, shown);
    const find = (event) => {
      const area = shown.getBoundingClientRect();
      const j = Math.floor((event.clientX - area.left - box.left) / cellX);
      const i = Math.floor((box.top + box.height - event.clientY + area.top) / cellY);
      return i >= 0 && j >= 0 && i < data.alphas.length && j < data.omegas.length ? { i, j } : null;
    };
    shown.addEventListener("click", (event) => { const at = find(event); if (at) choose(at.i, at.j); });
    shown.addEventListener("pointerleave", (event) => hint(event, holder, null));
    shown.addEventListener("pointermove", (event) => {
      const at = find(event);
      hint(event, holder, at && [place(at), ...Object.entries(BRANCHES).map(([branch, { own, words }]) =>
        known(value(branch, "train_loss", at.i, at.j))
          ? `${words}: ${[["ε_t", "train_loss"], ["ε_g", "test_error"], [own, "own"]].map(([sign, name]) => `${SIGNS[sign]} ${number(value(branch, name, at.i, at.j), 3)}`).join(", ")}`
          : `${words}: does not exist`)]);
    });
    const bar = `linear-gradient(to right, ${colors.join(",")})`;
    element("scale").innerHTML = `<span>${number(low, 3)}</span><span class="explorer-bar" style="background:${bar}"></span><span>${number(high, 3)}</span><span class="explorer-quantity">${what.label}</span>`;
  };

  // --- the trajectories ----------------------------------------------------------------------------------------------
  const CURVES = [
    { title: "overlaps", scale: 1, parts: [["own", ""], ["q", "2 4"]] },
    { title: "losses × 10³", scale: 1e3, parts: [["train_loss", ""], ["test_error", "2 4"]] },
  ];
  // trajectories are stored as whole numbers of a unit: the first value, then the change at each iteration
  const decode = (changes, unit) => {
    let sum = 0;
    return changes.map((change) => unit * (sum += change));
  };
  const drawPaths = () => {
    const paths = window.EXPLORER_PATHS;
    const holder = element("path");
    if (!paths) return;
    const { i, j } = point;
    const width = Math.max(holder.clientWidth, 240);
    const narrow = width < 560;
    const [across, down] = narrow ? [width, 270] : [width / 2, 300];
    const shown = picture(holder, width, narrow ? 2 * down : down, `Overlaps and losses at every iteration of message passing, ${place(point)}`);
    CURVES.forEach(({ title, scale, parts }, k) => {
      const group = svg("g", { transform: narrow ? `translate(0 ${k * down})` : `translate(${k * across} 0)` }, shown);
      const curves = [];
      for (const [branch, { color }] of Object.entries(BRANCHES)) {
        for (const [name, dash] of parts) {
          curves.push({ color, dash, values: decode(paths[branch][name][i][j], scale * paths.units[name]), end: value(branch, name, i, j), scale });
        }
      }
      const every = curves.flatMap(({ values, end }) => [...values, ...(known(end) ? [scale * end] : [])]);
      const [low, high] = [Math.min(0, ...every), 1.05 * Math.max(...every, 1e-12)];
      const last = curves[0].values.length - 1;
      const box = { left: 56, top: 10, width: across - 70, height: down - 62, x: [0, last], y: [low, high] };
      const { toX, toY } = frame(holder, { ...box, xLabel: "iteration", yLabel: title, xTicks: ticks(0, last, 5), yTicks: ticks(low, high, 5) }, group);
      for (const { color, dash, values, end } of curves) {
        polyline(group, values.map((v, t) => [toX(t), toY(v)]), { class: "curve", stroke: color, "stroke-width": 2, "stroke-dasharray": dash });
        if (known(end)) polyline(group, [[toX(0), toY(scale * end)], [toX(last), toY(scale * end)]], { stroke: color, "stroke-width": 1, "stroke-dasharray": "7 5" });
      }
    });
  };

  // --- the table -----------------------------------------------------------------------------------------------------
  const fillTable = () => {
    const { i, j } = point;
    element("title").textContent = place(point);
    const lower = lowest(i, j);
    element("verdict").innerHTML = lower
      ? `The ${lower} minimum has the lower training loss of the branches that exist. Its test error is ${gain(i, j) > 0 ? "lower" : "higher"} than the error of the linear baseline, <i>ε</i><sub>lin</sub> = ${number(data.baseline[j])}.`
      : "Neither branch exists here: all weights go to zero.";
    const measured = (name) => (branch) => withError(value(branch, name, i, j), value(branch, `${name}_error`, i, j));
    const exists = (branch) => known(value(branch, "q", i, j));
    const rows = [
      ["solution", (branch) => STATUS[value(branch, "status", i, j)] ?? value(branch, "status", i, j)],
      [`squared norm ${SIGNS.q}`, measured("q")],
      [`overlap ${SIGNS.θ} or ${SIGNS.m}`, (branch) => (exists(branch) ? `${SIGNS[BRANCHES[branch].own]} = ${measured("own")(branch)}` : "–")],
      [`variance ${SIGNS.V}`, measured("V")],
      [`training loss ${SIGNS["ε_t"]}`, measured("train_loss")],
      [`test error ${SIGNS["ε_g"]}`, measured("test_error")],
      ["stable under iteration", (branch) => (exists(branch) ? (value(branch, "stable", i, j) ? "yes" : "no") : "–")],
      ["replica symmetry", (branch) => value(branch, "validity", i, j)],
    ];
    const cells = ([name, pick]) => `<tr><th scope="row">${name}</th><td>${pick("semantic")}</td><td>${pick("positional")}</td></tr>`;
    element("table").innerHTML = `<table><thead><tr><td></td><th scope="col">semantic</th><th scope="col">positional</th></tr></thead><tbody>${rows.map(cells).join("")}</tbody></table>`;
  };

  // --- the chosen point ----------------------------------------------------------------------------------------------
  const nearest = (values, x) => values.reduce((best, v, k) => (Math.abs(v - x) < Math.abs(values[best] - x) ? k : best), 0);
  const fromAddress = () => {
    const words = new URLSearchParams(location.hash.slice(1));
    const read = (name, other) => (words.has(name) && isFinite(words.get(name)) ? Number(words.get(name)) : other);
    return { i: nearest(data.alphas, read("alpha", 1.5)), j: nearest(data.omegas, read("omega", 0.3)) };
  };
  let point = fromAddress();
  const show = () => {
    for (const [name, sign, v, k] of [["alpha", "α", data.alphas[point.i], point.i], ["omega", "ω", data.omegas[point.j], point.j]]) {
      element(name).value = k;
      element(name).setAttribute("aria-valuetext", `${sign} = ${v.toFixed(2)}`);
      element(`${name}-value`).textContent = v.toFixed(2);
    }
    drawMap();
    fillTable();
    drawPaths();
  };
  const choose = (i, j) => {
    point = { i, j };
    history.replaceState(null, "", `#alpha=${data.alphas[i].toFixed(3)}&omega=${data.omegas[j].toFixed(2)}`);
    show();
  };

  QUANTITIES.forEach(({ name }, k) => element("what").add(new Option(name, k)));
  element("alpha").max = data.alphas.length - 1;
  element("omega").max = data.omegas.length - 1;
  const ring = '<svg width="34" height="16" aria-hidden="true"><circle cx="17" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="2.5"/></svg>';
  const gray = `<svg width="34" height="12" aria-hidden="true"><rect x="5" width="24" height="12" fill="${MISSING}"/></svg>`;
  legend("map-legend", [
    ...LINES.map(([, words, dash, width, color]) => [swatch(color === "#222222" ? "currentColor" : color, dash, width), words]),
    [gray, "no value: a branch does not exist"], [ring, "chosen point"],
  ]);
  legend("path-legend", Object.values(BRANCHES).flatMap(({ own, color, words }) => [
    [swatch(color, "", 2), `${words}: overlap ${SIGNS[own]}; training loss ${SIGNS["ε_t"]}`],
    [swatch(color, "2 4", 2), `${words}: squared norm ${SIGNS.q}; test error ${SIGNS["ε_g"]}`],
    [swatch(color, "7 5", 1), `${words}: fixed points`],
  ]));
  show();
  element("what").addEventListener("change", drawMap);
  for (const name of ["alpha", "omega"]) {
    element(name).addEventListener("input", () => choose(Number(element("alpha").value), Number(element("omega").value)));
  }
  window.addEventListener("hashchange", () => { point = fromAddress(); show(); });
  window.addEventListener("load", drawPaths);
  window.addEventListener("resize", show);
})();
