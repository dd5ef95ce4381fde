// The block trie as an icicle: width is tokens x requests, colour is reuse; click, Enter and Escape zoom.
const ROW = 26, ROWS = 14, ABOVE = 3, NARROW = 0.7, LETTER = 6.6, LIKE = 24;

// Siblings often begin alike: a label starts with the word that tells it apart.
function labelApart(siblings) {
  const shared = (a, b) => {
    let at = 0;
    while (at < a.length && a[at] === b[at]) at += 1;
    return at;
  };
  const sorted = [...siblings].sort((a, b) => (a.label < b.label ? -1 : 1));
  const alike = sorted.map((node, at) => Math.max(
    at ? shared(node.label, sorted[at - 1].label) : 0, at + 1 < sorted.length ? shared(node.label, sorted[at + 1].label) : 0,
  ));
  sorted.forEach((node, at) => {
    if (alike[at] <= LIKE || alike[at] >= node.label.length) return;
    const word = node.label.lastIndexOf(" ", alike[at] - 1) + 1;
    node.label = "…" + node.label.slice(Math.max(word, alike[at] - LIKE));
  });
}

function readTrie() {
  const top = { level: 0, weight: 0, children: [], parent: null, label: "All prompts" };
  const nodes = data.trie.map((branch) => ({ ...branch, children: [] }));
  nodes.forEach((node, number) => {
    node.parent = data.trie[number].parent < 0 ? top : nodes[data.trie[number].parent];
    node.parent.children.push(node);
    node.label = node.merged > 1 ? `${count(node.merged)} small branches` : node.text.replace(/\s+/g, " ").trim() || "block of a trace";
  });
  [top, ...nodes].forEach((node) => labelApart(node.children.filter((child) => child.merged === 1)));
  top.weight = d3.sum(top.children, (node) => node.weight);
  const place = (node, from) => {
    node.from = from;
    node.to = from + node.weight;
    node.children.sort((a, b) => (a.merged > 1) - (b.merged > 1) || b.weight - a.weight);
    for (const child of node.children) { child.level = node.level + 1; place(child, from); from += child.weight; }
  };
  place(top, 0);
  return top;
}

function drawIcicle() {
  const container = $("icicle");
  if (!container || !data.trie.length) return;
  const top = readTrie();
  let focus = top, current = top, width = 0;

  const facts = (node) => (node === top
    ? `All prompts: ${count(top.weight)} tokens × requests in full blocks`
    : `${count(node.tokens)} tokens from token ${count(node.start)}, ${count(node.requests)} requests` +
      (node.merged > 1 ? `, ${count(node.merged)} branches too small to draw` : node.sessions ? `, ${count(node.sessions)} sessions` : "") +
      `; ${percent(node.reused)} of its tokens served from cache; ${percent(node.weight / top.weight)} of all tokens pass here`);
  const read = (node) => {
    current = node;
    const text = element("pre", {}, element("bdi", {}, node.text || ""));
    $("reading").replaceChildren(element("p", {}, facts(node)), ...(node.text ? [text] : []));
  };
  const zoom = (node, focused) => {
    focus = node;
    draw(width);
    read(node);
    say(`Zoomed to ${node.label}`);
    if (focused) svg.selectAll(".cell").filter((one) => one === node).node()?.focus();
  };

  const svg = d3.create("svg").attr("role", "tree").attr("aria-label", "Block trie; arrow keys move, Enter zooms in, Escape out");
  const draw = (now) => {
    width = now;
    const first = Math.max(focus.level - ABOVE, 0);
    const x = d3.scaleLinear([focus.from, focus.to], [0, width]).clamp(true);
    const shown = [];
    const visit = (node) => {
      const inside = node.from < focus.to && node.to > focus.from;
      if (!inside || node.level - first >= ROWS || x(node.to) - x(node.from) < NARROW) return;
      if (node.level >= first) shown.push(node);
      node.children.forEach(visit);
    };
    visit(top);
    const rows = d3.max(shown, (node) => node.level) - first + 1;
    svg.attr("width", width).attr("height", rows * ROW).attr("viewBox", `0 0 ${width} ${rows * ROW}`);
    if (!shown.includes(current)) current = focus;
    const cells = svg.selectAll("g.cell").data(shown).join((enter) => {
      const made = enter.append("g");
      made.append("rect").attr("height", ROW).attr("rx", 2);
      made.append("text").attr("x", 6).attr("y", ROW / 2).attr("dy", "0.35em").attr("aria-hidden", "true");
      return made;
    });
    cells.attr("class", (node) => `cell${node === top ? " all" : ""}${node === focus ? " current" : ""}`)
      .attr("transform", (node) => `translate(${x(node.from)},${(node.level - first) * ROW})`)
      .attr("role", "treeitem").attr("aria-level", (node) => node.level + 1)
      .attr("aria-label", (node) => `${node.label.slice(0, 60)}: ${facts(node)}`)
      .attr("tabindex", (node) => (node === current ? 0 : -1))
      .style("--k", (node) => (node === top ? null : node.reused));
    cells.select("rect").attr("width", (node) => x(node.to) - x(node.from));
    cells.select("text").text((node) => {
      const room = Math.floor((x(node.to) - x(node.from) - 12) / LETTER);
      return room < 3 ? "" : node.label.length > room ? node.label.slice(0, room - 1) + "…" : node.label;
    });
    cells.on("click", (_, node) => zoom(node === focus && node.parent ? node.parent : node, true))
      .on("mouseenter focus", (_, node) => read(node))
      .on("keydown", (event, node) => move(event, node, shown));
    crumbs();
  };
  const move = (event, node, shown) => {
    const siblings = node.parent ? node.parent.children.filter((one) => shown.includes(one)) : [node];
    const at = siblings.indexOf(node);
    const next = {
      ArrowRight: siblings[at + 1], ArrowLeft: siblings[at - 1], ArrowUp: node.parent,
      ArrowDown: node.children.find((one) => shown.includes(one)), Home: top,
    }[event.key];
    if (event.key === "Enter" || event.key === " ") zoom(node, true);
    else if (event.key === "Escape") { if (focus.parent) zoom(focus.parent, true); }
    else if (next && shown.includes(next)) {
      svg.selectAll(".cell").attr("tabindex", (one) => (one === next ? 0 : -1)).filter((one) => one === next).node().focus();
    } else if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
  };
  const crumbs = () => {
    const path = [];
    for (let node = focus; node; node = node.parent) path.unshift(node);
    const kept = path.length > 5 ? [path[0], null, ...path.slice(-3)] : path;
    $("crumbs").replaceChildren(...kept.flatMap((node, number) => {
      const button = node && element("button", { type: "button", title: node.label.slice(0, 200) }, node.label.slice(0, 40));
      if (node) { button.disabled = node === focus; button.addEventListener("click", () => zoom(node, false)); }
      return [...(number ? [element("span", { "aria-hidden": "true" }, "›")] : []), button || element("span", {}, "…")];
    }));
  };
  container.replaceChildren(svg.node());
  follow(container, draw);
}
