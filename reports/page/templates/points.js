// The table of points: sorted by its headers, filtered, in pages. Names only ever become text.
(function () {
  "use strict";
  const source = document.getElementById("points-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const table = document.getElementById("points-table");
  const body = table.tBodies[0];
  const of = (name) => document.getElementById("points-" + name);
  const PAGE = 50;
  const state = { column: -1, down: false, page: 0, rows: [] };

  // as foundation/words.py writes them
  function decimals(value, digits) {
    if (value === 0 || !Number.isFinite(value)) return 0;
    return Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  }
  function interval(value, low, high) {
    if (low === high && value) return value.toFixed(decimals(value, 3)) + " [unknown]";
    let places = decimals(value || high, 3);
    const half = (high - low) / 2;
    if (half > 0) places = Math.max(places, Math.min(decimals(half, 2), places + 1));
    return value.toFixed(places) + " [" + low.toFixed(places) + ", " + high.toFixed(places) + "]";
  }
  const percent = (share) => (share === null ? "-" : (100 * share).toFixed(1) + "%");

  const guess = (i) => data.predictions[data.prediction[i]];
  function accuracy(i) {
    const measured = data.measured[i];
    return measured > 0 ? 1 - Math.abs(guess(i)[0] - measured) / measured : null;
  }
  const overlap = (i) => guess(i)[1] <= data.high[i] && data.low[i] <= guess(i)[2];
  const kase = (i) => data.cases[data.case[i]];
  // for every column: what sorts it, what it shows
  const columns = [
    { key: (i) => kase(i)[0], text: (i) => kase(i)[0] },
    { key: (i) => kase(i)[2], text: (i) => kase(i)[2] },
    { key: (i) => kase(i)[3], text: (i) => String(kase(i)[3]) },
    { key: accuracy, text: (i) => percent(accuracy(i)) },
    { key: (i) => kase(i)[4], text: (i) => kase(i)[5] },
    { key: (i) => guess(i)[0], text: (i) => guess(i)[3] + interval(guess(i)[0], guess(i)[1], guess(i)[2]) },
    { key: (i) => data.measured[i], text: (i) => interval(data.measured[i], data.low[i], data.high[i]) },
    { key: (i) => (overlap(i) ? 1 : 0), text: (i) => (overlap(i) ? "yes" : "no") },
    { key: (i) => data.at_speed[i], text: (i) => percent(data.at_speed[i]) },
    { key: (i) => data.memory[i], text: (i) => percent(data.memory[i]) },
    { key: (i) => data.night[i], text: (i) => data.nights[data.night[i]] },
  ];
  const headers = [...table.tHead.rows[0].cells];

  function filtered() {
    const words = of("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const model = of("model").value, strategy = of("strategy").value, night = of("night").value;
    const fits = data.cases.map((one) => {
      const text = (one[0] + " " + one[2]).toLowerCase();
      const exact = ["p=" + one[3], "batch=" + one[5]]; // p=1 is not p=16
      const has = (word) => (/^(p|batch)=/.test(word) ? exact.includes(word) : text.includes(word));
      return (!model || one[0] === data.cases[model][0]) && (!strategy || one[1] === data.cases[strategy][1]) &&
        words.every(has);
    });
    const rows = [];
    for (let i = 0; i < data.case.length; i += 1) {
      if (fits[data.case[i]] && (night === "" || data.night[i] === Number(night))) rows.push(i);
    }
    return rows;
  }

  function sort(rows) {
    if (state.column < 0) return rows;
    const key = columns[state.column].key, sign = state.down ? -1 : 1;
    const keys = new Map(rows.map((i) => [i, key(i)]));
    const words = new Intl.Collator("en", { numeric: true }).compare;
    return rows.sort((a, b) => {
      const x = keys.get(a), y = keys.get(b);
      if (x === null || y === null) return x === y ? a - b : x === null ? 1 : -1; // what is not known stands last
      return sign * (typeof x === "string" ? words(x, y) : x - y) || a - b;
    });
  }

  function show() {
    const { rows } = state, pages = Math.max(1, Math.ceil(rows.length / PAGE));
    state.page = Math.min(Math.max(0, state.page), pages - 1);
    const first = state.page * PAGE, shown = rows.slice(first, first + PAGE);
    body.replaceChildren(...shown.map((i) => {
      const line = document.createElement("tr");
      columns.forEach((column, k) => {
        const cell = document.createElement(k === 0 ? "th" : "td"), text = column.text(i);
        if (k === 0) cell.scope = "row";
        cell.className = headers[k].classList.contains("number") ? "number" : text.length < 24 ? "short" : "case";
        cell.textContent = text;
        line.append(cell);
      });
      return line;
    }));
    const count = rows.length.toLocaleString("en"), all = data.case.length.toLocaleString("en");
    of("status").textContent = rows.length
      ? count + " of " + all + " points match; rows " + (first + 1) + " to " + (first + shown.length) + " are shown"
      : "No point of " + all + " matches";
    of("page").textContent = "Page " + (state.page + 1) + " of " + pages;
    of("previous").disabled = state.page === 0;
    of("next").disabled = state.page >= pages - 1;
  }

  function again() { state.page = 0; state.rows = sort(filtered()); show(); }

  headers.forEach((header, k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent.trim();
    header.replaceChildren(button);
    button.addEventListener("click", () => {
      state.down = state.column === k ? !state.down : false;
      state.column = k;
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      again();
    });
  });
  function fill(select, texts) {
    for (const [value, text] of texts) select.append(new Option(text, value));
  }
  const firsts = (k) => [...new Map(data.cases.map((one, i) => [one[k], i]).reverse())]
    .map(([text, i]) => [String(i), text]).sort((a, b) => (a[1] < b[1] ? -1 : 1));
  fill(of("model"), firsts(0));
  fill(of("strategy"), firsts(1));
  fill(of("night"), data.nights.map((text, i) => [String(i), text]).reverse());
  if (data.chosen !== null) of("night").value = String(data.chosen);
  of("text").addEventListener("input", again);
  for (const name of ["model", "strategy", "night"]) of(name).addEventListener("change", again);
  of("previous").addEventListener("click", () => { state.page -= 1; show(); });
  of("next").addEventListener("click", () => { state.page += 1; show(); });
  of("controls").hidden = of("pages").hidden = of("status").hidden = false;
  of("static").hidden = true;
  again();
})();
