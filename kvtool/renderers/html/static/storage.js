// A prewarm plan: the heat strip of its blocks, and what its bytes buy.
function drawStrip() {
  const shown = data.storage;
  if (!shown || !shown.cells.length) return;
  let at = 0;
  const cells = shown.cells.map((cell, number) => ({ ...cell, number, from: at, to: (at += cell.bytes) }));
  const most = Math.max(d3.max(cells, (cell) => cell.bits), 1);
  const worst = d3.max(cells, (cell) => cell.kl ?? 0);
  const mix = (share, low, high) => `color-mix(in oklab, var(${high}) ${(100 * share).toFixed(0)}%, var(${low}))`;
  const words = (cell) => [
    `${count(cell.blocks)} block${cell.blocks > 1 ? "s" : ""} at depth ${count(cell.depth)}, ${count(cell.requests)} requests`,
    `${bytes(cell.bytes)}, ${cell.bits.toFixed(2)} bits an element, ${cell.codec}`,
    cell.kl === null ? "KL not measured" : `KL ${cell.kl.toExponential(1)}`, ...(cell.protected ? ["protected"] : []),
  ].join("\n");
  const row = (y, fill) => Plot.rect(cells, { x1: "from", x2: "to", y1: () => y, y2: () => y + 0.9, fill, inset: 0, insetRight: cells.length < 200 ? 0.5 : 0 });
  chart("strip", () => ({
    height: 120, marginLeft: 76, marginRight: 16, marginTop: 8, marginBottom: 34, ariaLabel: "Bits and KL of each stored block",
    x: { label: "bytes on disk", tickFormat: (value) => bytes(value), ticks: 5 },
    y: { domain: [2.4, 0], axis: null },
    color: { type: "identity" },
    marks: [
      row(0, (cell) => mix(cell.bits / most, "--wash", "--served")),
      row(1, (cell) => (cell.kl === null ? "var(--new)" : worst ? mix(cell.kl / worst, "--wash", "--lost-fill") : "var(--wash)")),
      Plot.rect(cells.filter((cell) => cell.protected), { x1: "from", x2: "to", y1: () => 2.05, y2: () => 2.3, fill: "var(--ink)" }),
      Plot.text([["bits", 0.45], ["KL", 1.45], ["protected", 2.18]], { x: 0, y: "1", text: "0", textAnchor: "end", dx: -10, fill: "currentColor" }),
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
    height: 240, marginLeft: 56, marginRight: 24, marginBottom: 40, ariaLabel: "Prompt tokens served against stored bytes",
    x: { label: "bytes stored", tickFormat: (value) => bytes(value), ticks: 5 },
    y: { label: null, tickFormat: "~s", grid: true, ticks: 5 },
    marks: [
      Plot.areaY(rows, { x: "size", y: "tokens", fill: "var(--served-tint)", fillOpacity: 0.5 }),
      Plot.lineY(rows, { x: "size", y: "tokens", stroke: "var(--p1)", strokeWidth: 2 }),
      Plot.ruleX(budget, { stroke: "var(--quiet)", strokeDasharray: "4 3" }),
      Plot.text(budget, { x: (value) => value, frameAnchor: "top", text: () => "budget", dx: -6, textAnchor: "end", fill: "var(--quiet)" }),
      Plot.ruleY([0], { stroke: "var(--line)" }),
      Plot.tip(rows, Plot.pointerX({ x: "size", y: "tokens", title: (row) => `${bytes(row.size)} serve ${count(row.tokens)} prompt tokens`, ...TIP })),
    ],
  }));
}
