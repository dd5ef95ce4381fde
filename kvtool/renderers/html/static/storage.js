// A prewarm plan: the heat strip of its blocks, and what its bytes buy.
// Round numbers of the largest unit that the axis needs.
function byteAxis(label, most) {
  const unit = 1024 ** Math.max(Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024)), 0);
  return { label, domain: [0, most], ticks: d3.ticks(0, most / unit, 6).map((tick) => tick * unit), tickFormat: (value) => (value ? bytes(value) : "0") };
}

function drawStrip() {
  const shown = data.storage;
  if (!shown || !shown.cells.length) return;
  let at = 0;
  const cells = shown.cells.map((cell, number) => ({ ...cell, number, from: at, to: (at += cell.bytes) }));
  const most = Math.max(d3.max(cells, (cell) => cell.bits), 1);
  const worst = d3.max(cells, (cell) => cell.kl ?? 0);
  const mix = (share, low, high) => `color-mix(in oklab, var(${high}) ${(100 * share).toFixed(0)}%, var(${low}))`;
  const guarded = cells.filter((cell) => cell.protected);
  const words = (cell) => [
    `${count(cell.blocks)} block${cell.blocks > 1 ? "s" : ""} at depth ${count(cell.depth)}, ${count(cell.requests)} requests`,
    `${bytes(cell.bytes)}, ${cell.bits.toFixed(2)} bits an element, ${cell.codec}`,
    cell.kl === null ? "KL not measured" : `KL ${cell.kl.toExponential(1)}`, ...(cell.protected ? ["protected"] : []),
  ].join("\n");
  const row = (y, fill) => Plot.rect(cells, { x1: "from", x2: "to", y1: () => y, y2: () => y + 0.9, fill, inset: 0, insetRight: cells.length < 200 ? 0.5 : 0 });
  chart("strip", () => ({
    height: guarded.length ? 120 : 106, marginLeft: 76, marginRight: 16, marginTop: 8, marginBottom: 34, ariaLabel: "Bits and KL of each stored block",
    x: byteAxis("bytes on disk", at),
    y: { domain: [guarded.length ? 2.4 : 2, 0], axis: null },
    color: { type: "identity" },
    marks: [
      row(0, (cell) => mix(cell.bits / most, "--wash", "--served")),
      row(1, (cell) => (cell.kl === null ? "var(--new)" : worst ? mix(cell.kl / worst, "--wash", "--lost-fill") : "var(--wash)")),
      Plot.rect(guarded, { x1: "from", x2: "to", y1: () => 2.05, y2: () => 2.3, fill: "var(--ink)" }),
      Plot.text([["bits", 0.45], ["KL", 1.45], ...(guarded.length ? [["protected", 2.18]] : [])], { x: 0, y: "1", text: "0", textAnchor: "end", dx: -10, fill: "currentColor" }),
      Plot.tip(cells, Plot.pointerX({ x: (cell) => (cell.from + cell.to) / 2, y: () => 1, title: words, ...TIP })),
    ],
  }));
}

function drawValue() {
  const shown = data.storage;
  if (!shown || !shown.value.length) return;
  const rows = shown.value.map(([size, tokens]) => ({ size, tokens }));
  const budget = shown.budget === null ? [] : [shown.budget];
  chart("value", () => ({
    height: 250, marginLeft: 56, marginRight: 28, marginTop: 26, marginBottom: 40, ariaLabel: "Prompt tokens served against stored bytes",
    x: byteAxis("bytes stored", Math.max(rows.at(-1).size, shown.budget ?? 0)),
    y: { label: null, tickFormat: "~s", grid: true, ticks: 5 },
    marks: [
      Plot.areaY(rows, { x: "size", y: "tokens", fill: "var(--served-tint)", fillOpacity: 0.5 }),
      Plot.lineY(rows, { x: "size", y: "tokens", stroke: "var(--p1)", strokeWidth: 2 }),
      Plot.ruleX(budget, { stroke: "var(--quiet)", strokeDasharray: "4 3" }),
      Plot.text(budget, { x: (value) => value, frameAnchor: "top", text: () => "budget", dy: -14, fill: "var(--quiet)" }),
      Plot.ruleY([0], { stroke: "var(--line)" }),
      Plot.tip(rows, Plot.pointerX({ x: "size", y: "tokens", title: (row) => `${bytes(row.size)} serve ${count(row.tokens)} prompt tokens`, ...TIP })),
    ],
  }));
}
