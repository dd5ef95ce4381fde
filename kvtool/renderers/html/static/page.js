// The page itself: data, numbers, theme, copying, the assumed speed, printing, and charts that follow the width.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const count = d3.format(",");
const percent = (share) => (100 * share).toFixed(1) + "%";
const short = d3.format("~s");

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value.toFixed(value < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

function say(text) { $("said").textContent = text; }

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A function that draws into a container, now and whenever its width changes.
function follow(container, draw) {
  if (!container) return;
  let width = 0;
  const again = () => {
    const now = Math.floor(container.clientWidth);
    if (now && now !== width) { width = now; draw(now); }
  };
  new ResizeObserver(again).observe(container);
  again();
}

function chart(name, options) {
  const container = document.querySelector(`[data-chart="${name}"]`);
  const draw = (width) => {
    const plots = [options(width)].flat().map((one) => {
      const svg = Plot.plot({ className: "plot", width, style: { fontSize: "12px", background: "transparent" }, ...one });
      svg.setAttribute("role", "img"); // one picture with one name: its parts have none
      for (const part of svg.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
      return svg;
    });
    container.replaceChildren(...plots);
  };
  follow(container, draw);
  return container && (() => draw(Math.floor(container.clientWidth)));
}

// A time axis in UTC and 24 hours, as fine as its span asks for.
function timeAxis(times, width) {
  const [from, to] = d3.extent(times);
  const hours = (to - from) / 36e5;
  const format = hours < 0.1 ? "%H:%M:%S" : hours < 30 ? "%H:%M" : hours < 1500 ? "%d %b" : "%b %Y";
  // A log that counts from zero has times, but no date.
  const label = new Date(from).getUTCFullYear() === 1970 ? "time in the log" : hours < 30 ? `UTC, ${d3.utcFormat("%d %B %Y")(from)}` : "UTC";
  return { type: "utc", label, tickFormat: d3.utcFormat(format), ticks: width / 110 };
}

const TIP = { fill: "var(--card)", stroke: "var(--line)", fontSize: 12 };
const rateAxis = { label: null, tickFormat: (share) => `${Math.round(100 * share)}%`, grid: true, ticks: 5 };

function startTheme() {
  const root = document.documentElement;
  const apply = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
  };
  let kept = "auto";
  try { kept = localStorage.getItem("kvtool-theme") || "auto"; } catch { /* storage may be closed to files */ }
  for (const input of document.querySelectorAll('input[name="theme"]')) {
    input.checked = input.value === kept;
    input.addEventListener("change", () => {
      apply(input.value);
      try { localStorage.setItem("kvtool-theme", input.value); } catch { /* as above */ }
    });
  }
  apply(kept);
  $("theme").hidden = false;
}

function startCopying() {
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = $(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        getSelection().selectAllChildren(source);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      say("Command copied");
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}

function startSpeed() {
  const input = $("speed");
  if (!input) return;
  const show = () => {
    const seconds = Number(input.dataset.tokens) / Number(input.value);
    if (!Number.isFinite(seconds) || seconds < 0) return;
    $("seconds").textContent = seconds < 10 ? `${seconds.toFixed(1)} s`
      : seconds < 600 ? `${seconds.toFixed(0)} s`
        : seconds < 36000 ? `${(seconds / 60).toFixed(0)} min` : `${count(Math.round(seconds / 3600))} h`;
  };
  input.addEventListener("input", show);
  show();
}

// Paper shows every finding in full.
function startPrinting() {
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.finding:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
}
