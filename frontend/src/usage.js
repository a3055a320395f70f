/** The usage page's charts, drawn from the tables beside them, in the page's colours. */
import { BarController, BarElement, CategoryScale, Chart, Legend, LinearScale, Tooltip } from "chart.js";

Chart.register(BarController, BarElement, CategoryScale, LinearScale, Legend, Tooltip);
Chart.defaults.animation = false;
Chart.defaults.maintainAspectRatio = false;
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;

const dark = matchMedia("(prefers-color-scheme: dark)");
/** @type {Chart[]} */
let shown = [];

/** The labels of its rows and the values of its data-series columns. @param {HTMLTableElement} table */
function read(table) {
  const heads = [...(table.tHead?.rows[0].cells ?? [])];
  const rows = [...table.tBodies[0].rows];
  const series = heads
    .map((head, column) => ({ label: head.textContent?.trim() ?? "", column, isShown: head.hasAttribute("data-series") }))
    .filter((each) => each.isShown)
    .map(({ label, column }) => ({ label, data: rows.map((row) => Number(row.cells[column].dataset.value)) }));
  return { labels: rows.map((row) => row.cells[0].dataset.short ?? ""), series };
}

/** @param {string} name */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** @param {HTMLElement} figure */
function draw(figure) {
  const canvas = /** @type {HTMLCanvasElement} */ (figure.querySelector("canvas"));
  const { labels, series } = read(/** @type {HTMLTableElement} */ (figure.querySelector("table")));
  const [text, line] = [colour("--muted"), colour("--line")];
  const axis = { stacked: true, border: { color: line }, ticks: { color: text } };
  return new Chart(canvas, {
    type: "bar",
    data: {
      labels,
      datasets: series.map((each, n) => ({ ...each, backgroundColor: colour(`--chart-${(n % 8) + 1}`), maxBarThickness: 40 })),
    },
    options: {
      locale: document.documentElement.lang,
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { ...axis, grid: { display: false }, ticks: { color: text, maxRotation: 0, autoSkipPadding: 12 } },
        y: { ...axis, grid: { color: line }, beginAtZero: true, ticks: { color: text, precision: 0, maxTicksLimit: 6 } },
      },
      plugins: {
        legend: { display: series.length > 1, position: "bottom", align: "start", labels: { color: text, boxWidth: 12, boxHeight: 12 } },
        tooltip: { filter: (item) => item.raw !== 0 },
      },
    },
  });
}

function show() {
  shown.forEach((chart) => chart.destroy());
  shown = [...document.querySelectorAll("[data-chart]")].map((figure) => draw(/** @type {HTMLElement} */ (figure)));
}

dark.addEventListener("change", show);
show();
