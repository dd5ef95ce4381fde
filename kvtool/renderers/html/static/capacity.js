// Hit rate against cache size, with the memory sizes of a model as vertical lines.
const LOOKS = {
  lru: ["var(--p1)", "circle"], cost: ["var(--p2)", "square"], lfu: ["var(--p3)", "triangle"],
  gdsf: ["var(--p4)", "diamond"], "lfu-da": ["var(--p6)", "star"], fitted: ["var(--p7)", "wye"],
  belady: ["var(--p5)", "circle"],
};
const MEMORY = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 24, 40, 80, 160, 320, 640, 1280, 2560];
const APART = 66;

function rateAt(points, blocks) {
  const right = points.findIndex((point) => point[0] >= blocks);
  if (right < 0) return points.at(-1)[1];
  if (right === 0) return points[0][1] * Math.min(blocks / points[0][0], 1);
  const [[low, from], [high, to]] = [points[right - 1], points[right]];
  return from + (to - from) * (Math.log(blocks / low) / Math.log(high / low));
}

function drawCapacity() {
  const shown = data.capacity;
  if (!shown || !shown.curves.length) return;
  const select = $("model");
  shown.models.forEach((model, number) => select.append(element("option", { value: number }, model.name)));
  const curves = shown.curves.map((curve) => ({ ...curve, look: LOOKS[curve.policy] || ["var(--p5)", "cross"] }));
  const lru = (curves.find((curve) => curve.policy === "lru") || curves[0]).points;
  const points = curves.flatMap((curve) => curve.points.map(([blocks, rate]) => ({ ...curve, blocks, rate })));
  const low = Math.max(d3.min(points, (point) => point.blocks), Math.floor(shown.distinct_blocks / 200), 1);
  const visible = points.filter((point) => point.blocks >= low);
  const top = Math.max(d3.max(points, (point) => point.rate), 0.01) * 1.08;

  const sizes = () => {
    const block = shown.models[Number(select.value || 0)].bytes_per_token * shown.block_size;
    $("block-bytes").textContent = `in 16 bits a block takes ${bytes(block)}, a GiB holds ${count(Math.floor(2 ** 30 / block))} blocks`;
    return MEMORY.map((memory) => ({ memory, blocks: Math.floor(memory * 2 ** 30 / block) })).filter((one) => one.blocks >= 1);
  };
  // Largest first, those whose labels would overlap left out.
  const apart = (all, width) => {
    const x = d3.scaleLog([low, Math.max(shown.distinct_blocks, low * 2)], [44, width - 70]);
    return all.reverse().reduce((kept, one) => (
      kept.length && x(kept.at(-1).blocks) - x(one.blocks) < APART ? kept : [...kept, one]), []);
  };
  const redraw = chart("capacity", (width) => {
    const marked = apart(sizes().filter((one) => one.blocks >= low && one.blocks <= shown.distinct_blocks), width);
    return {
      height: 340, marginLeft: 44, marginRight: width < 500 ? 20 : 70, marginTop: 30, marginBottom: 42,
      ariaLabel: "Hit rate against cache size, per policy",
      x: { type: "log", label: "blocks in the cache", tickFormat: "~s", domain: [low, Math.max(shown.distinct_blocks, low * 2)], ticks: width / 120 },
      y: { ...rateAxis, domain: [0, top] },
      color: { type: "identity" }, symbol: { type: "identity" },
      marks: [
        Plot.ruleY([0], { stroke: "var(--line)" }),
        Plot.ruleX(marked, { x: "blocks", stroke: "var(--quiet)", strokeOpacity: 0.6, strokeDasharray: "1 3" }),
        Plot.text(marked, { x: "blocks", frameAnchor: "top", dy: -16, text: (one) => bytes(one.memory * 2 ** 30), fill: "var(--quiet)" }),
        ...curves.map((curve) => Plot.lineY(visible.filter((point) => point.policy === curve.policy), {
          x: "blocks", y: "rate", stroke: curve.look[0], strokeWidth: curve.policy === "lru" ? 2.5 : 1.75,
          strokeDasharray: curve.policy === "belady" ? "6 4" : null, curve: "monotone-x",
        })),
        ...curves.filter((curve) => curve.points.length < 20).map((curve) => Plot.dot(
          visible.filter((point) => point.policy === curve.policy),
          { x: "blocks", y: "rate", stroke: curve.look[0], symbol: curve.look[1], r: 3, fill: "var(--card)" },
        )),
        Plot.tip(visible, Plot.pointer({
          x: "blocks", y: "rate", ...TIP,
          title: (point) => `${point.policy}: ${percent(point.rate)}\n${count(point.blocks)} blocks, ${percent(point.blocks / shown.distinct_blocks)} of all`,
        })),
      ],
    };
  });
  const legend = element("p", { class: "legend quiet" });
  for (const curve of curves) {
    const svg = d3.create("svg").attr("width", 26).attr("height", 12).attr("aria-hidden", "true");
    svg.append("line").attr("x2", 26).attr("y1", 6).attr("y2", 6).style("stroke", curve.look[0]).attr("stroke-width", 2.5)
      .attr("stroke-dasharray", curve.policy === "belady" ? "6 4" : null);
    if (curve.points.length < 20) {
      svg.append("path").attr("transform", "translate(13,6)").attr("d", d3.symbol(d3[`symbol${curve.look[1][0].toUpperCase()}${curve.look[1].slice(1)}`], 34)())
        .style("stroke", curve.look[0]).style("fill", "var(--card)").attr("stroke-width", 1.5);
    }
    legend.append(element("span", {}, svg.node(), ` ${curve.policy}${curve.policy === "belady" ? " (optimum)" : ""}`));
  }
  document.querySelector('[data-chart="capacity"]').before(legend);

  const table = () => {
    $("memory").replaceChildren(...sizes().map((one) => {
      const row = element("tr", {}, element("th", { scope: "row" }, bytes(one.memory * 2 ** 30)));
      row.append(element("td", { class: "number" }, count(one.blocks)));
      row.append(element("td", { class: "number" }, percent(rateAt(lru, one.blocks))));
      return row;
    }));
  };
  select.addEventListener("change", () => { redraw(); table(); });
  table();
}
