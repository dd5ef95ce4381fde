// Block sizes, hit rate over time, sessions: charts that need no control.
const SHORT = 0.1;

function drawBlockSizes() {
  const rows = data.block_sizes;
  if (!rows.length) return;
  chart("block-sizes", () => ({
    height: 220, marginLeft: 44, marginBottom: 40, marginTop: 8, insetLeft: 24, insetRight: 12,
    ariaLabel: "Hit rate against block size",
    x: { type: "log", base: 2, label: "tokens a block", tickFormat: (size) => String(size), ticks: rows.map((row) => row.block_size) },
    y: { ...rateAxis, domain: [0, Math.max(0.01, d3.max(rows, (row) => row.tokens)) * 1.2] },
    marks: [
      Plot.ruleY([0], { stroke: "var(--line)" }),
      Plot.lineY(rows, { x: "block_size", y: "tokens", stroke: "var(--p1)", strokeWidth: 2 }),
      Plot.dot(rows, {
        x: "block_size", y: "tokens", r: 4, stroke: "var(--p1)",
        fill: (row) => (row.block_size === data.block_size ? "var(--p1)" : "var(--card)"),
      }),
      Plot.text(rows, { x: "block_size", y: "tokens", dy: -12, text: (row) => percent(row.tokens), fill: "currentColor" }),
    ],
  }));
}

function drawOverTime() {
  const shown = data.over_time;
  if (!shown || shown.intervals.length < 2) return;
  const at = (value) => (shown.timed ? new Date(value / 1000) : value);
  const rows = shown.intervals.map((one) => ({
    from: at(one.start), to: at(one.start + shown.width), middle: at(one.start + shown.width / 2), ...one,
    rate: one.prompt_tokens ? one.saved_tokens / one.prompt_tokens : null,
  }));
  const parts = rows.flatMap((row) => [
    { ...row, kind: "served", low: 0, high: row.saved_tokens },
    { ...row, kind: "computed", low: row.saved_tokens, high: row.prompt_tokens },
  ]);
  const x = (width) => (shown.timed ? timeAxis([rows[0].from, rows.at(-1).to], width) : { label: "request", ticks: width / 110 });
  const words = (row) => `${percent(row.rate || 0)} of ${count(row.prompt_tokens)} tokens\n${count(row.requests)} requests`;
  chart("over-time", (width) => [
    {
      height: 150, marginLeft: 52, marginRight: 28, marginBottom: 22, ariaLabel: "Hit rate over time", x: { ...x(width), label: null, domain: [rows[0].from, rows.at(-1).to] },
      y: { ...rateAxis, domain: [0, 1], ticks: 4 },
      marks: [
        Plot.ruleY([0], { stroke: "var(--line)" }),
        Plot.lineY(rows.filter((row) => row.rate !== null), { x: "middle", y: "rate", stroke: "var(--p1)", strokeWidth: 2 }),
        Plot.dot(rows.filter((row) => row.rate !== null), { x: "middle", y: "rate", r: 2, fill: "var(--p1)" }),
        Plot.tip(rows, Plot.pointerX({ x: "middle", y: "rate", title: words, ...TIP })),
      ],
    },
    {
      height: 150, marginLeft: 52, marginRight: 28, marginBottom: 40, ariaLabel: "Prompt tokens over time", x: x(width),
      y: { label: null, tickFormat: (value) => short(value), grid: true, ticks: 4 },
      marks: [
        Plot.rectY(parts, {
          x1: "from", x2: "to", y1: "low", y2: "high", insetLeft: 0.5,
          fill: (part) => (part.kind === "served" ? "var(--served)" : "var(--lost-fill)"),
        }),
        Plot.ruleY([0], { stroke: "var(--line)" }),
        Plot.tip(rows, Plot.pointerX({ x: "middle", y: "prompt_tokens", title: words, ...TIP })),
      ],
    },
  ]);
}

// Minutes since a session began, as a person says them.
function elapsed(minutes) {
  return minutes < 1 ? `${Math.round(60 * minutes)} s` : minutes < 120 ? `${Math.round(minutes)} min` : `${(minutes / 60).toFixed(1)} h`;
}

function drawSessions() {
  const shown = data.sessions;
  if (!shown || !shown.rows.length) return;
  const spans = shown.rows.map((row) => ({ session: row.name, from: row.calls[0].at, to: row.calls.at(-1).at }));
  const whole = d3.max(spans, (span) => span.to) - d3.min(spans, (span) => span.from);
  // Where sessions are short beside the log, each row starts at its own beginning.
  const aligned = shown.timed && d3.median(spans, (span) => span.to - span.from) < SHORT * whole;
  const at = (value, span) => (aligned ? (value - span.from) / 6e7 : shown.timed ? new Date(value / 1000) : value);
  const calls = shown.rows.flatMap((row, number) => row.calls.map((call) => ({
    session: row.name, at: at(call.at, spans[number]), tokens: call.prompt_tokens,
    rate: call.prompt_tokens ? call.saved_tokens / call.prompt_tokens : 0,
  })));
  const lines = spans.map((span) => ({ session: span.session, from: at(span.from, span), to: at(span.to, span) }));
  const label = (name) => (name.length > 16 ? name.slice(0, 15) + "…" : name);
  const x = (width) => (aligned ? { label: "since the session's first request", tickFormat: elapsed, ticks: width / 110 }
    : shown.timed ? timeAxis(calls.map((call) => call.at), width) : { label: "request", ticks: width / 110 });
  chart("sessions", (width) => ({
    height: 52 + 20 * shown.rows.length, marginLeft: 110, marginRight: 28, marginBottom: 40,
    ariaLabel: "Requests of the largest sessions over time",
    x: x(width),
    y: { domain: shown.rows.map((row) => row.name), label: null, tickFormat: label, tickSize: 0 },
    r: { range: [0, 7] },
    color: { type: "identity" },
    marks: [
      Plot.ruleY(lines, { y: "session", x1: "from", x2: "to", stroke: "var(--line)", strokeWidth: 2 }),
      Plot.dot(calls, {
        y: "session", x: "at", r: "tokens", stroke: "var(--card)", strokeWidth: 0.75,
        fill: (call) => `color-mix(in oklab, var(--served) ${(100 * call.rate).toFixed(0)}%, var(--lost-fill))`,
      }),
      Plot.tip(calls, Plot.pointer({
        y: "session", x: "at", ...TIP,
        title: (call) => `${call.session}\n${count(call.tokens)} prompt tokens, ${percent(call.rate)} from cache`,
      })),
    ],
  }));
}
