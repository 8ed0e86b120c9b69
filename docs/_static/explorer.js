// The explorer: a phase diagram whose points tell all that is stored of them. Numbers are in explorer_data.js.
(() => {
  "use strict";
  const data = window.EXPLORER;
  const branches = { semantic: { own: "θ", colour: "#0072B2" }, positional: { own: "m", colour: "#D55E00" } };
  const element = (id) => document.getElementById(`explorer-${id}`);
  const known = (x) => x !== null && x !== undefined;
  const each = (pick) => data.alphas.map((_, i) => data.omegas.map((_, j) => pick(i, j)));
  const value = (branch, name, i, j) => data[branch][name][i][j];
  const both = (name, i, j, f) => {
    const [s, p] = [value("semantic", name, i, j), value("positional", name, i, j)];
    return known(s) && known(p) ? f(s, p) : null;
  };
  // the branch of lower training loss, among those that exist
  const lowest = (i, j) => {
    const [s, p] = ["semantic", "positional"].map((branch) => value(branch, "train_loss", i, j));
    return known(s) && (!known(p) || s <= p) ? "semantic" : known(p) ? "positional" : null;
  };
  const ofLowest = (name) => (i, j) => (lowest(i, j) ? value(lowest(i, j), name, i, j) : null);
  const scaled = (factor, pick) => (i, j) => (known(pick(i, j)) ? factor * pick(i, j) : null);
  const gain = (i, j) => (lowest(i, j) ? data.baseline[j] - ofLowest("test_error")(i, j) : null);
  const quantities = [
    { name: "ε_t(positional) − ε_t(semantic), 10⁻³", centred: true, pick: scaled(1e3, (i, j) => both("train_loss", i, j, (s, p) => p - s)) },
    { name: "gain over the linear baseline, 10⁻³", centred: true, pick: scaled(1e3, gain) },
    { name: "ε_g of the lower minimum, 10⁻³", pick: scaled(1e3, ofLowest("test_error")) },
    { name: "θ of the semantic branch", pick: (i, j) => value("semantic", "own", i, j) },
    { name: "m of the positional branch", pick: (i, j) => value("positional", "own", i, j) },
    { name: "replicon, semantic branch", pick: (i, j) => value("semantic", "replicon", i, j) },
    { name: "replicon, positional branch", pick: (i, j) => value("positional", "replicon", i, j) },
  ];
  const short = (x, digits = 4) => (known(x) ? Number(x).toPrecision(digits) : "–");
  const withError = (x, error) => (known(x) ? `${short(x)} ± ${known(error) ? short(error, 1) : "?"}` : "–");

  // colours of the page, light or dark
  const theme = () => {
    const style = getComputedStyle(document.body);
    const colour = (name, other) => style.getPropertyValue(name).trim() || other;
    return {
      text: colour("--color-foreground-primary", "#222"), grid: colour("--color-background-border", "#ddd"),
      missing: "#AAAAAA", paper: colour("--color-background-primary", "#fff"),
    };
  };
  const layout = (more) => {
    const now = theme();
    const axis = { gridcolor: now.grid, zerolinecolor: now.grid, linecolor: now.text, fixedrange: true };
    const base = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: now.missing, font: { color: now.text, size: 13 } };
    return { ...base, ...more(axis, now) };
  };
  const options = { responsive: true, displayModeBar: false };
  const narrow = () => element("map").clientWidth < 560;

  const drawMap = () => {
    const what = quantities[element("what").value];
    const now = theme();
    const z = each(what.pick);
    const size = Math.max(...z.flat().filter(known).map(Math.abs));
    const text = each((i, j) => {
      const lines = [`α = ${data.alphas[i].toFixed(3)}, ω = ${data.omegas[j].toFixed(2)}`];
      for (const [branch, { own }] of Object.entries(branches)) {
        lines.push(known(value(branch, "train_loss", i, j))
          ? `${branch}: ε_t ${short(value(branch, "train_loss", i, j), 3)}, ε_g ${short(value(branch, "test_error", i, j), 3)}, ${own} ${short(value(branch, "own", i, j), 3)}`
          : `${branch}: none`);
      }
      return lines.join("<br>");
    });
    const colours = what.centred
      ? { zmin: -size, zmax: size, colorscale: [[0, "#D55E00"], [0.5, "#FFFFFF"], [1, "#0072B2"]] }
      : { colorscale: "Viridis" };
    const bar = narrow() ? { orientation: "h", y: -0.25, yanchor: "top", thickness: 10 } : { thickness: 14 };
    const heat = {
      type: "heatmap", x: data.omegas, y: data.alphas, z, text, hoverinfo: "text", xgap: 1, ygap: 1, ...colours,
      colorbar: { ...bar, title: { text: what.name, side: narrow() ? "top" : "right" } },
    };
    const top = data.alphas[data.alphas.length - 1];
    const line = (name, label, dash, width, colour) => ({
      type: "scatter", mode: "lines", x: data.probed, y: data.lines[name].map((v) => (known(v) && v <= top ? v : null)),
      name: label, line: { dash, width, color: colour }, hoverinfo: "skip", showlegend: Boolean(label),
    });
    const dark = "#222222";
    const lines = [
      line("alpha_c", "α_c", "solid", 3, dark), line("alpha_l", "α_l", "dash", 2, dark),
      line("semantic_from", "", "dot", 2, branches.semantic.colour), line("positional_to", "", "dot", 2, branches.positional.colour),
    ];
    const { i, j } = point;
    const mark = {
      type: "scatter", mode: "markers", x: [data.omegas[j]], y: [data.alphas[i]], hoverinfo: "skip", showlegend: false,
      marker: { symbol: "circle-open", size: 16, color: "#000000", line: { width: 3 } },
    };
    Plotly.react(element("map"), [heat, ...lines, mark], layout((axis) => ({
      margin: { l: 50, r: 10, t: 40, b: narrow() ? 120 : 45 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", bgcolor: "#F4F4F4", font: { color: dark } },
      xaxis: { ...axis, title: { text: "ω: share of attention by position", standoff: 5 }, showgrid: false },
      yaxis: { ...axis, title: { text: "α = n/d", standoff: 5 }, range: [-0.03, top + 0.05], showgrid: false },
    })), options);
  };

  const drawPath = () => {
    const { i, j } = point;
    const traces = [];
    for (const [branch, { own, colour }] of Object.entries(branches)) {
      const path = data[branch].path;
      const time = path.q[i][j].map((_, t) => t);
      const add = (name, label, axis, dash) => {
        traces.push({
          x: time, y: path[name][i][j], name: `${label}, ${branch}`, legendgroup: branch, xaxis: `x${axis}`, yaxis: `y${axis}`,
          type: "scatter", mode: "lines", line: { color: colour, dash, width: 2 }, hovertemplate: `${label} %{y:.4f}, t = %{x}<extra>${branch}</extra>`,
        });
        const end = value(branch, name, i, j);
        if (known(end)) {
          traces.push({
            x: [0, time.length - 1], y: [end, end], xaxis: `x${axis}`, yaxis: `y${axis}`, type: "scatter", mode: "lines",
            line: { color: colour, dash: "dash", width: 1 }, hoverinfo: "skip", showlegend: false,
          });
        }
      };
      add("own", own, "", "solid");
      add("q", "q", "", "dot");
      add("train_loss", "ε_t", "2", "solid");
      add("test_error", "ε_g", "2", "dot");
    }
    const [first, second] = narrow() ? [[0, 1], [0, 1]] : [[0, 0.44], [0.56, 1]];
    const [upper, lower] = narrow() ? [[0.58, 1], [0, 0.42]] : [[0, 1], [0, 1]];
    Plotly.react(element("path"), traces, layout((axis, now) => ({
      plot_bgcolor: now.paper, margin: { l: 55, r: 10, t: 10, b: 40 }, legend: { orientation: "h", y: -0.2, font: { size: 11 } },
      xaxis: { ...axis, domain: first, title: { text: "iteration", standoff: 4 }, anchor: "y" },
      yaxis: { ...axis, domain: upper, title: { text: "overlaps", standoff: 5 }, rangemode: "tozero" },
      xaxis2: { ...axis, domain: second, title: { text: "iteration", standoff: 4 }, anchor: "y2" },
      yaxis2: { ...axis, domain: lower, title: { text: "losses", standoff: 5 }, anchor: "x2", exponentformat: "power" },
    })), options);
  };

  const tell = () => {
    const { i, j } = point;
    element("title").textContent = `α = ${data.alphas[i].toFixed(3)}, ω = ${data.omegas[j].toFixed(2)}`;
    const lower = lowest(i, j);
    const beats = lower && gain(i, j) > 0 ? "beats" : "does not beat";
    element("verdict").textContent = lower
      ? `The lower minimum is ${lower}; it ${beats} the linear baseline, ε_lin = ${short(data.baseline[j])}.`
      : "Neither branch exists here: all weights go to zero.";
    const rows = [
      ["status", (branch) => value(branch, "status", i, j)],
      ["q", (branch) => withError(value(branch, "q", i, j), value(branch, "q_error", i, j))],
      ["θ or m", (branch) => `${branches[branch].own} = ${withError(value(branch, "own", i, j), value(branch, "own_error", i, j))}`],
      ["V", (branch) => withError(value(branch, "V", i, j), value(branch, "V_error", i, j))],
      ["training loss ε_t", (branch) => withError(value(branch, "train_loss", i, j), value(branch, "train_loss_error", i, j))],
      ["test error ε_g", (branch) => withError(value(branch, "test_error", i, j), value(branch, "test_error_error", i, j))],
      ["stable", (branch) => (known(value(branch, "q", i, j)) ? (value(branch, "stable", i, j) ? "yes" : "no") : "–")],
      ["replica symmetry", (branch) => value(branch, "validity", i, j)],
    ];
    const table = document.createElement("table");
    const line = (cells, kind) => {
      const row = table.insertRow();
      cells.forEach((text, k) => {
        const cell = document.createElement(k === 0 || kind === "th" ? "th" : "td");
        cell.textContent = text;
        row.appendChild(cell);
      });
    };
    line(["", "semantic", "positional"], "th");
    rows.forEach(([name, pick]) => line([name, pick("semantic"), pick("positional")], "td"));
    element("table").replaceChildren(table);
  };

  const nearest = (values, x) => values.reduce((best, v, k) => (Math.abs(v - x) < Math.abs(values[best] - x) ? k : best), 0);
  const fromAddress = () => {
    const words = new URLSearchParams(location.hash.slice(1));
    const number = (name, other) => (words.has(name) && isFinite(words.get(name)) ? Number(words.get(name)) : other);
    return { i: nearest(data.alphas, number("alpha", 1.5)), j: nearest(data.omegas, number("omega", 0.3)) };
  };
  let point = fromAddress();
  const show = () => {
    element("alpha").value = point.i;
    element("omega").value = point.j;
    element("alpha-value").textContent = data.alphas[point.i].toFixed(2);
    element("omega-value").textContent = data.omegas[point.j].toFixed(2);
    drawMap();
    drawPath();
    tell();
  };
  const choose = (i, j) => {
    point = { i, j };
    history.replaceState(null, "", `#alpha=${data.alphas[i].toFixed(3)}&omega=${data.omegas[j].toFixed(2)}`);
    show();
  };

  quantities.forEach(({ name }, k) => element("what").add(new Option(name, k)));
  element("alpha").max = data.alphas.length - 1;
  element("omega").max = data.omegas.length - 1;
  show();
  element("map").on("plotly_click", ({ points: [{ x, y }] }) => choose(nearest(data.alphas, y), nearest(data.omegas, x)));
  element("what").addEventListener("change", drawMap);
  for (const name of ["alpha", "omega"]) {
    element(name).addEventListener("input", () => choose(Number(element("alpha").value), Number(element("omega").value)));
  }
  window.addEventListener("hashchange", () => { point = fromAddress(); show(); });
  window.addEventListener("resize", show);
  new MutationObserver(show).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
})();
