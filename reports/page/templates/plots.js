// Draws the figures: those in sight first, then the others one by one, all of them before printing.
// Plotly is large, so the page is there before it is run. Colours of text and axes: the style sheet.
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const ids = Object.keys(figures).filter((id) => document.getElementById(id));
  const HISTORY = "history-plot";
  const narrow = window.matchMedia("(max-width: 40rem)").matches;
  const base = {
    font: { family: "system-ui, sans-serif", size: 12, color: "#7d848d" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 60, r: 12, t: 12, b: 10 }, showlegend: false,
  };
  const config = { responsive: true, displayModeBar: false };
  const begun = new Map();
  let drawn = 0;

  function draw(id) {
    if (!begun.has(id)) {
      load();
      const layout = Object.assign({}, base, figures[id].layout);
      layout.legend = Object.assign({ bgcolor: "rgba(0,0,0,0)" }, layout.legend);
      for (const axis of ["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis\d+$/.test(key))]) {
        layout[axis] = Object.assign({ automargin: true }, layout[axis]);
        if (layout[axis].title) layout[axis].title = Object.assign({ standoff: 8 }, layout[axis].title);
      }
      if (narrow) { // a finger scrolls the page; boxes stand for the legend
        layout.dragmode = false;
        if (choices.has(id)) layout.showlegend = false;
        if (id === HISTORY) { // it opens at its end, and its scale is there, too
          layout.yaxis.side = "right";
          layout.margin = Object.assign({}, layout.margin, { l: 12 });
        }
      }
      begun.set(id, Plotly.newPlot(id, figures[id].data, layout, config).then((plot) => {
        drawn += 1;
        document.documentElement.dataset.plotsDrawn = String(drawn);
        if (choices.has(id)) follow(plot, choices.get(id));
        const region = id === HISTORY && plot.closest(".scroll");
        if (region) region.scrollLeft = region.scrollWidth; // the newest nights first
        return plot;
      }));
    }
    return begun.get(id);
  }

  // boxes that show and hide the lines of a figure, as a click into its legend does
  const choices = new Map();
  for (const field of document.querySelectorAll("fieldset[data-plot]")) {
    choices.set(field.dataset.plot, field);
    field.hidden = false;
    field.addEventListener("change", (event) => {
      const box = event.target;
      if (!box.dataset.trace) return;
      draw(field.dataset.plot).then((plot) =>
        Plotly.restyle(plot, { visible: box.checked ? true : "legendonly" }, [Number(box.dataset.trace)]));
    });
  }
  function follow(plot, field) {
    plot.on("plotly_restyle", () => {
      for (const box of field.querySelectorAll("input[data-trace]")) {
        box.checked = plot.data[Number(box.dataset.trace)].visible !== "legendonly";
      }
    });
  }

  function load() {
    if (window.Plotly || !ids.length) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly-code").textContent;
    document.head.append(script);
  }
  function begin() {
    load();
    ids.forEach((id) => watch.observe(document.getElementById(id)));
    next();
  }

  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) { watch.unobserve(entry.target); draw(entry.target.id); }
    }
  }, { rootMargin: "300px" });
  const waiting = ids.slice();
  function next() {
    while (waiting.length && begun.has(waiting[0])) waiting.shift();
    if (waiting.length) draw(waiting.shift()).then(() => setTimeout(next, 20));
  }

  document.documentElement.dataset.plotsDrawn = "0";
  window.addEventListener("beforeprint", () => { load(); ids.forEach(draw); });
  setTimeout(begin, 50); // after the page was painted
})();
