"use strict";
// The script of the page: the charts over time, the table of trades, light and dark. It computes no figure of the run: it draws and sorts what is in #data.
// Every text is set by textContent.
(() => {
  const L = LightweightCharts;
  const data = JSON.parse(document.getElementById("data").textContent);
  // Keys of a trade's values in their order; those with a head are columns of the table.
  const COLUMNS = data.columns ?? [];
  const trades = (data.trades ?? []).map((row) => Object.fromEntries(COLUMNS.map(({ key }, n) => [key, row[n]])));
  const PX_PER_MARKER = 14; // of the chart's width: with more trades in view, only those with the largest results get markers
  const LABELS_MAX = 12; // trades in view up to which each has its result as text
  const LEVELS_MAX = 60; // trades in view up to which stops and targets are drawn
  const PAGE_ROWS = innerWidth > 760 ? 100 : 20;
  const HIT_PX = 8;
  const DAY_S = 86_400;

  // -- small helpers

  function make(name, props = {}, ...children) {
    const element = Object.assign(document.createElement(name), props);
    element.append(...children);
    return element;
  }
  const byId = (id) => document.getElementById(id);
  // Formatters are kept, because making one takes longer than using it a hundred times.
  const formatters = new Map();
  function formatter(options) {
    const key = JSON.stringify(options);
    if (!formatters.has(key)) formatters.set(key, new Intl.NumberFormat("en-US", options));
    return formatters.get(key);
  }
  const fixed = (value, digits = 2, signDisplay = "auto") =>
    value == null ? "–" : formatter({ minimumFractionDigits: digits, maximumFractionDigits: digits, signDisplay, roundingMode: "halfEven" }).format(value).replace("-", "−");
  const price = (value) => (value == null ? "–" : formatter({ maximumSignificantDigits: 10 }).format(value));
  const moment = (ms, length = 16) => (ms == null ? "" : new Date(ms).toISOString().slice(0, length).replace("T", " "));
  // As bot.number_text.duration.
  const UNITS = [["y", 31_536_000], ["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  function duration(ms) {
    const left = Math.round(ms / 1000);
    const n = UNITS.findIndex(([, unit]) => left >= unit);
    if (n < 0) return "0 s";
    const [name, unit] = UNITS[n];
    const below = UNITS[n + 1];
    const more = below ? Math.floor((left % unit) / below[1]) : 0;
    return `${Math.floor(left / unit)} ${name}${more ? ` ${more} ${below[0]}` : ""}`;
  }
  // The forms of bot.figures that the table of trades uses; a cost is shown by its effect on the account.
  function pxText(value) {
    if (!value) return "0";
    const decimals = Math.max(2, 5 - Math.floor(Math.log10(Math.abs(value))));
    const [whole, part] = fixed(value, Math.min(decimals, 20)).split(".");
    return `${whole}.${part.replace(/0+$/, "").padEnd(2, "0")}`;
  }
  const signed = (value) => fixed(Math.abs(value) < 0.005 ? 0 : value, 2, "exceptZero");
  const FORMS = {
    text: (value) => `${value}`,
    words: (value) => `${value}`,
    count: (value) => fixed(value, 0),
    gain: signed,
    cost: (value) => signed(-value),
    r: (value) => `${signed(value)} R`,
    px: pxText,
    size: (value) => formatter({ maximumFractionDigits: 8 }).format(value).replace("-", "−"),
    seconds: (value) => duration(value * 1000),
    instant: (value) => {
      const at = new Date(value).toUTCString().split(" ");
      return `${at[1]} ${at[2]} ${at[3]} ${at[4]}`;
    },
  };
  const shown = (column, value) => (value == null ? "–" : FORMS[column.form](value));
  // As bot.figures.tone_of, for the forms of the table.
  function toneOf(column, value) {
    if (!["gain", "r"].includes(column.form) || column.better === "none" || !value) return "";
    return value > 0 === (column.better === "higher") ? "up" : "down";
  }
  function summed(steps) {
    let at = 0;
    return steps.map((step) => (at += step));
  }
  // The last place in `rising` whose value is at most `value`; -1 if there is none.
  function lastUpTo(rising, value) {
    let [low, high] = [0, rising.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rising[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
  // A colour of the style sheet as rgb(), which a canvas needs; `alpha` makes it transparent.
  function colour(name, alpha = 1) {
    const probe = document.body.appendChild(make("i"));
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return alpha === 1 ? found : found.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
  }
  function colours() {
    const names = ["card", "line", "grid", "text", "muted", "up", "down", "accent", "amber", "bench", "violet", "cyan"];
    return Object.fromEntries(names.map((name) => [name, colour(name)]));
  }

  // -- what stands on the candles

  class Overlay {
    // Draws on the pane of a series: `draw(context, width, height, x, y)`.
    constructor(draw) {
      this._draw = draw;
    }
    attached({ chart, series }) {
      const scale = chart.timeScale();
      const draw = (target) =>
        target.useMediaCoordinateSpace(({ context, mediaSize }) =>
          this._draw(context, mediaSize.width, mediaSize.height, (place) => scale.logicalToCoordinate(place), (px) => series.priceToCoordinate(px)));
      this._views = [{ renderer: () => ({ draw }), zOrder: () => "top" }];
    }
    paneViews() {
      return this._views;
    }
  }

  function line(context, x0, y0, x1, y1) {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }
  function triangle(context, x, y, size, isUp) {
    const tip = isUp ? -size : size;
    context.beginPath();
    context.moveTo(x, y + tip);
    context.lineTo(x - size, y - tip);
    context.lineTo(x + size, y - tip);
    context.fill();
  }
  function cross(context, x, y, size) {
    line(context, x - size, y - size, x + size, y + size);
    line(context, x - size, y + size, x + size, y - size);
  }

  // The trades of one market on its candles: places on the time axis, and what is drawn of them in view.
  class TradeLayer {
    constructor(market, times, onView) {
      const last = times.length - 1;
      const at = (ms) => (ms == null ? last : lastUpTo(times, ms / 1000));
      this.trades = trades
        .filter((trade) => trade.market === market)
        .map((trade) => ({ trade, from: Math.max(0, at(trade.entryMs)), to: Math.max(0, at(trade.exitMs)) }));
      const level = ([from, to, px]) => [Math.max(0, lastUpTo(times, from)), to == null ? last : Math.max(0, lastUpTo(times, to)), px];
      this.stops = data.markets[market].stops.map(level);
      this.targets = data.markets[market].targets.map(level);
      this.lastClose = data.markets[market].close[last];
      this.onView = onView;
      this.shown = [];
    }
    draw(context, width, x, y, range, tone) {
      const seen = this.trades.filter((one) => one.to >= range.from && one.from <= range.to);
      const most = Math.max(1, Math.floor(width / PX_PER_MARKER));
      const marked = new Set(seen.length <= most ? seen : [...seen].sort((a, b) => Math.abs(b.trade.result) - Math.abs(a.trade.result)).slice(0, most));
      this.onView(seen.length, marked.size);
      if (seen.length <= LEVELS_MAX) {
        context.setLineDash([2, 3]);
        for (const [levels, kind] of [[this.stops, tone.down], [this.targets, tone.up]]) {
          context.strokeStyle = kind;
          for (const [from, to, px] of levels)
            if (to >= range.from && from <= range.to) line(context, x(from), y(px), x(to), y(px));
        }
        context.setLineDash([]);
      }
      const size = marked.size <= 40 ? 5 : 3.5;
      this.shown = seen.map((one) => {
        const { trade } = one;
        const [x0, y0, x1, y1] = [x(one.from), y(trade.entryPx), x(one.to), y(trade.exitPx ?? this.lastClose)];
        context.strokeStyle = context.fillStyle = trade.exitMs == null ? tone.accent : trade.result > 0 ? tone.up : tone.down;
        context.lineWidth = seen.length > 100 ? 1 : 2;
        line(context, x0, y0, x1, y1);
        if (marked.has(one)) {
          context.lineWidth = 1.5;
          if (trade.exitMs != null) cross(context, x1, y1, size - 1);
          if (seen.length <= LABELS_MAX) {
            context.font = "11px system-ui, sans-serif";
            context.fillText(fixed(trade.result, 2, "always"), x1 + 7, y1 - 5);
          }
          context.fillStyle = trade.side === "long" ? tone.accent : tone.violet;
          triangle(context, x0, y0 + (trade.side === "long" ? size + 2 : -size - 2), size, trade.side === "long");
        }
        return { trade, x0, y0, x1, y1 };
      });
    }
    // The trade whose line is nearest to a point on the pane, if it is near enough.
    near({ x, y }) {
      let found = null;
      let best = HIT_PX;
      for (const { trade, x0, y0, x1, y1 } of this.shown) {
        const [dx, dy] = [x1 - x0, y1 - y0];
        const part = Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy || 1)));
        const distance = Math.hypot(x - x0 - part * dx, y - y0 - part * dy);
        if (distance < best) [best, found] = [distance, trade];
      }
      return found;
    }
  }

  // -- the chart over time

  // A run's curve on the places of `times`, where each place lasts `step` seconds: the value at its end, the deepest drawdown and largest exposure in it.
  function resampled(run, times, step) {
    const known = summed(run.t);
    let row = -1;
    const made = { equity: [], drawdown: [], exposure: [], hold: [] };
    for (const time of times) {
      const last = lastUpTo(known, time + step);
      const [from, to] = [Math.min(row + 1, last), last + 1];
      const slice = (name) => run[name].slice(Math.max(0, from), to);
      made.equity.push(last < 0 ? null : run.equity[last]);
      made.hold.push(last < 0 || !run.hold ? null : run.hold[last]);
      made.drawdown.push(last < 0 ? null : Math.min(...slice("drawdown")));
      made.exposure.push(last < 0 ? null : Math.max(...slice("exposure")));
      row = last;
    }
    return made;
  }
  const points = (times, values) => times.map((time, n) => (values[n] == null ? { time } : { time, value: values[n] }));

  function options(tone) {
    return {
      autoSize: true,
      layout: { background: { color: tone.card }, textColor: tone.muted, fontFamily: "system-ui, sans-serif", panes: { separatorColor: tone.line, separatorHoverColor: tone.line } },
      grid: { vertLines: { color: tone.grid }, horzLines: { color: tone.grid } },
      timeScale: { timeVisible: true, borderColor: tone.line, minBarSpacing: 0.02 },
      rightPriceScale: { borderColor: tone.line, minimumWidth: 76 },
      crosshair: { mode: L.CrosshairMode.Normal },
      localization: { locale: "en-US", timeFormatter: (time) => moment(time * 1000) },
    };
  }
  const quiet = { lastValueVisible: false, priceLineVisible: false, crosshairMarkerVisible: false };
  const amounts = { type: "custom", formatter: (value) => fixed(value, Math.abs(value) >= 1000 ? 0 : 2) };
  const percents = { type: "custom", formatter: (value) => `${fixed(value, 1)}%` };

  class TimeChart {
    constructor() {
      this.market = Object.keys(data.markets ?? {})[0];
      this.isLog = false;
      this.readings = []; // [label, tone, values by place, digits] of the values under the cursor
      this.summary = make("output");
      this.build();
    }

    build(range) {
      this.chart?.remove();
      const tone = (this.tone = colours());
      this.panes = [];
      this.readings = [];
      this.layer = null;
      byId("plot").replaceChildren();
      this.chart = L.createChart(byId("plot"), options(tone));
      if (data.runs.length > 1) this.buildTwo(tone);
      else this.buildOne(tone);
      const heights = this.panes.map(([, height]) => height);
      byId("plot").style.height = `${heights.reduce((sum, height) => sum + height, 30)}px`;
      this.panes.forEach(([title, height], n) => {
        const pane = this.chart.panes()[n];
        pane.setStretchFactor(height);
        L.createTextWatermark(pane, { horzAlign: "left", vertAlign: "top", lines: [{ text: title, color: tone.muted, fontSize: 11, fontFamily: "system-ui, sans-serif" }] });
      });
      this.chart.subscribeCrosshairMove((move) => this.read(move));
      if (range) this.chart.timeScale().setVisibleLogicalRange(range);
      else this.chart.timeScale().fitContent();
      this.read({});
    }

    // A pane below the others: its title and its height. Returns its number.
    pane(title, height) {
      this.panes.push([title, byId("plot").clientWidth < 600 ? Math.round(height * 0.8) : height]);
      return this.panes.length - 1;
    }
    line(pane, label, name, values, style = {}, digits = 2) {
      const series = this.chart.addSeries(L.LineSeries, { ...quiet, color: this.tone[name], lineWidth: 1.5, ...style }, pane);
      series.setData(points(this.times, values));
      this.readings.push([label, name, values, digits]);
      return series;
    }
    area(pane, label, name, values, style = {}, digits = 2) {
      const fill = { lineColor: this.tone[name], topColor: colour(name, 0.25), bottomColor: colour(name, 0.25), lineWidth: 1 };
      const series = this.chart.addSeries(L.AreaSeries, { ...quiet, ...fill, ...style }, pane);
      series.setData(points(this.times, values));
      this.readings.push([label, name, values, digits]);
      return series;
    }

    buildTwo(tone) {
      const known = data.runs.map((run) => summed(run.t));
      this.times = [...new Set(known.flat())].sort((a, b) => a - b);
      const found = data.runs.map((run) => resampled(run, this.times, 0));
      const [top, bottom] = [this.pane("Equity, USD", 320), this.pane("Drawdown, %", 160)];
      ["accent", "amber"].forEach((name, n) => {
        this.line(top, data.runs[n].name, name, found[n].equity, { priceFormat: amounts });
        this.line(bottom, "drawdown", name, found[n].drawdown, { priceFormat: percents });
      });
    }

    buildOne(tone) {
      const [run] = data.runs;
      const candles = data.markets[this.market];
      this.times = summed(candles ? candles.t : run.t);
      const found = resampled(run, this.times, candles ? candles.step : 0);
      const top = this.pane(run.hold ? "Equity, and always long at the same average size (dashed), USD" : "Equity, USD", 190);
      const equity = this.line(top, "equity", "accent", found.equity, { priceFormat: amounts, lineWidth: 2 });
      if (run.hold) this.line(top, "always long", "bench", found.hold, { priceFormat: amounts, lineStyle: L.LineStyle.Dashed });
      const falls = this.area(this.pane("Drawdown, %", 90), "drawdown %", "down", found.drawdown, { priceFormat: percents, invertFilledArea: true });
      falls.priceScale().applyOptions({ scaleMargins: { top: 0.02, bottom: 0.06 } });
      this.mark(equity);
      if (candles) this.buildMarket(candles, tone);
      const held = this.pane("Exposure, USD", 80);
      this.area(held, "exposure", "bench", found.exposure, { priceFormat: amounts, lineType: L.LineType.WithSteps }, 0);
    }

    buildMarket(candles, tone) {
      const pane = this.pane(this.market, 360);
      const decimals = Math.min(8, Math.max(...candles.close.slice(0, 500).map((px) => `${px}`.split(".")[1]?.length ?? 0)));
      const format = { type: "custom", formatter: pxText, minMove: 10 ** -decimals };
      const look = { upColor: tone.up, downColor: tone.down, wickUpColor: tone.up, wickDownColor: tone.down, borderVisible: false };
      const series = this.chart.addSeries(L.CandlestickSeries, { ...look, priceLineVisible: false, priceFormat: format }, pane);
      series.setData(this.times.map((time, n) => ({ time, open: candles.open[n], high: candles.high[n], low: candles.low[n], close: candles.close[n] })));
      series.priceScale().applyOptions({ mode: this.isLog ? L.PriceScaleMode.Logarithmic : L.PriceScaleMode.Normal, scaleMargins: { top: 0.06, bottom: 0.2 } });
      for (const name of ["open", "high", "low", "close"]) this.readings.push([name, "text", candles[name], decimals]);
      if (candles.volume) {
        const volume = this.chart.addSeries(L.HistogramSeries, { ...quiet, priceScaleId: "volume", priceFormat: { type: "volume" } }, pane);
        const [up, down] = [colour("up", 0.35), colour("down", 0.35)];
        volume.setData(this.times.map((time, n) => ({ time, value: candles.volume[n], color: candles.close[n] >= candles.open[n] ? up : down })));
        volume.priceScale().applyOptions({ scaleMargins: { top: 0.84, bottom: 0 } });
        this.readings.push(["volume", "muted", candles.volume, 2]);
      }
      const names = ["violet", "amber", "cyan", "accent", "bench"];
      candles.indicators.forEach((one, n) => {
        const label = `${one.name} (${one.label})`;
        const full = new Set(candles.indicators.map((other) => other.strategy)).size > 1 ? `${one.strategy} ${label}` : label;
        this.line(one.onPrice ? pane : this.pane(full, 80), full, names[n % names.length], one.values, { priceFormat: one.onPrice ? format : amounts }, decimals);
      });
      this.mark(series);
      this.layer = new TradeLayer(this.market, this.times, (seen, marked) => {
        const text = `${seen.toLocaleString("en-US")} trade${seen === 1 ? "" : "s"} in view${marked < seen ? `, ${marked} with markers: zoom in for the others` : ""}`;
        if (this.summary.textContent !== text) this.summary.textContent = text;
      });
      this.pricePane = pane;
      series.attachPrimitive(new Overlay((context, width, _height, x, y) => {
        const range = this.chart.timeScale().getVisibleLogicalRange();
        if (range) this.layer.draw(context, width, x, y, range, tone);
      }));
    }

    // Outages as bands, and guardians of the account as lines, on the pane of a series.
    mark(series) {
      const at = (time) => lastUpTo(this.times, time);
      const outages = data.outages.map(([from, to]) => [at(from), at(to)]);
      const guardians = data.guardians.map(([time, type]) => [at(time), type]);
      const [band, edge] = [colour("amber", 0.16), colour("amber")];
      series.attachPrimitive(new Overlay((context, _width, height, x) => {
        context.fillStyle = band;
        for (const [from, to] of outages) context.fillRect(x(from), 0, Math.max(2, x(to) - x(from)), height);
        context.fillStyle = context.strokeStyle = edge;
        context.font = "10px system-ui, sans-serif";
        for (const [place, type] of guardians) {
          line(context, x(place), 0, x(place), height);
          if (guardians.length <= LABELS_MAX) context.fillText(type, x(place) + 3, 26);
        }
      }));
    }

    // Show the values under the cursor, or the newest ones, and the trade that the cursor is near.
    read({ logical, point, paneIndex }) {
      const place = logical == null ? this.times.length - 1 : Math.min(this.times.length - 1, Math.max(0, Math.round(logical)));
      const box = byId("readout");
      box.replaceChildren();
      if (place < 0) return;
      box.append(make("span", {}, make("b", { textContent: moment(this.times[place] * 1000) })));
      for (const [label, name, values, digits] of this.readings) {
        const value = make("b", { textContent: fixed(values[place], digits) });
        // The grey of the market is for lines: a text in it is too pale.
        value.style.color = this.tone[name === "bench" ? "muted" : name];
        box.append(make("span", {}, `${label} `, value));
      }
      const trade = point && this.layer && paneIndex === this.pricePane ? this.layer.near(point) : null;
      if (trade) box.append(make("div", {}, make("b", { textContent: tradeText(trade) })));
    }

    // The last `seconds`; everything without a number.
    zoom(seconds) {
      const last = this.times.length - 1;
      if (seconds == null || last < 1) this.chart.timeScale().fitContent();
      else this.chart.timeScale().setVisibleLogicalRange({ from: Math.max(0, lastUpTo(this.times, this.times[last] - seconds)), to: last + 1 });
    }

    show(trade) {
      if (!data.markets?.[trade.market]) return;
      if (trade.market !== this.market) {
        this.market = trade.market;
        const picker = byId("market");
        if (picker) picker.value = trade.market;
        this.build();
      }
      const [from, to] = [trade.entryMs, trade.exitMs ?? trade.entryMs].map((ms) => lastUpTo(this.times, ms / 1000));
      const room = Math.max(20, to - from);
      this.chart.timeScale().setVisibleLogicalRange({ from: from - room, to: to + room });
      byId("time").scrollIntoView();
    }

    rebuild() {
      this.build(this.chart.timeScale().getVisibleLogicalRange() ?? undefined);
    }
  }

  function tradeText(trade) {
    const held = trade.exitMs == null ? "open" : `${duration(trade.exitMs - trade.entryMs)}, ${trade.exitBy}`;
    const more = [trade.pct == null ? null : `${fixed(trade.pct, 2, "always")} %`, trade.r == null ? null : `${fixed(trade.r)} R`];
    return [`#${trade.number} ${trade.strategy} ${trade.side}`, `${fixed(trade.result, 2, "always")} USD`, ...more.filter(Boolean), held].join(" · ");
  }

  function controls(chart) {
    const bar = byId("chart-bar");
    const markets = Object.keys(data.markets ?? {});
    if (markets.length > 1) {
      const picker = make("select", { id: "market" }, ...markets.map((name) => make("option", { value: name, textContent: name })));
      picker.addEventListener("change", () => {
        chart.market = picker.value;
        chart.build();
      });
      bar.append(make("label", {}, "Market ", picker));
    }
    for (const [name, seconds] of [["All", null], ["90 d", 90 * DAY_S], ["30 d", 30 * DAY_S], ["7 d", 7 * DAY_S], ["1 d", DAY_S]])
      bar.append(make("button", { type: "button", className: "plain", textContent: name, onclick: () => chart.zoom(seconds) }));
    if (markets.length) {
      const log = make("button", { type: "button", className: "plain", textContent: "Log price" });
      log.setAttribute("aria-pressed", "false");
      log.onclick = () => {
        chart.isLog = !chart.isLog;
        log.setAttribute("aria-pressed", `${chart.isLog}`);
        chart.rebuild();
      };
      bar.append(log, chart.summary);
    }
  }

  // -- the table of trades

  const RESULTS = { won: (t) => t.exitMs != null && t.result > 0, "not won": (t) => t.exitMs != null && t.result <= 0, open: (t) => t.exitMs == null };

  class TradeTable {
    constructor(chart) {
      this.chart = chart;
      this.sorted = { key: "number", sign: -1 };
      this.filters = {};
      this.page = 0;
      this.head();
      this.bar();
      this.fill();
    }

    head() {
      this.columns = COLUMNS.filter(({ head }) => head);
      this.heads = [...byId("trade-table").tHead.rows[0].cells];
      this.columns.forEach(({ key, head }, n) => {
        const button = make("button", { type: "button", textContent: head, onclick: () => this.sort(key) });
        this.heads[n].dataset.key = key;
        this.heads[n].replaceChildren(button);
      });
    }

    bar() {
      const bar = byId("trade-bar");
      for (const key of ["strategy", "market", "side", "exitBy"]) {
        const values = [...new Set(trades.map((trade) => trade[key]))].sort();
        if (values.length > 1) bar.append(this.picker(key === "exitBy" ? "exit" : key, values, (trade, value) => trade[key] === value));
      }
      bar.append(this.picker("result", Object.keys(RESULTS), (trade, value) => RESULTS[value](trade)));
      this.back = make("button", { type: "button", className: "plain", textContent: "Previous", onclick: () => this.turn(-1) });
      this.next = make("button", { type: "button", className: "plain", textContent: "Next", onclick: () => this.turn(1) });
      bar.append(this.back, this.next);
    }
    picker(name, values, matches) {
      const choice = make("select", { id: `filter-${name}` }, make("option", { value: "", textContent: "all" }), ...values.map((value) => make("option", { value, textContent: value || "(none)" })));
      choice.addEventListener("change", () => {
        this.filters[name] = choice.selectedIndex ? (trade) => matches(trade, choice.value) : null;
        this.page = 0;
        this.fill();
      });
      return make("label", {}, `${name} `, choice);
    }

    sort(key) {
      this.sorted = { key, sign: this.sorted.key === key ? -this.sorted.sign : 1 };
      this.page = 0;
      this.fill();
    }
    turn(by) {
      this.page += by;
      this.fill();
    }

    // The trades that pass every filter, sorted; a trade without the value comes last.
    rows() {
      const { key, sign } = this.sorted;
      const filters = Object.values(this.filters).filter(Boolean);
      return trades
        .filter((trade) => filters.every((filter) => filter(trade)))
        .sort((one, other) => {
          const [a, b] = [one[key], other[key]];
          if (a == null || b == null) return (a == null) - (b == null) || one.number - other.number;
          return sign * (a < b ? -1 : a > b ? 1 : 0) || one.number - other.number;
        });
    }

    fill() {
      const rows = this.rows();
      const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS));
      const shown = rows.slice(this.page * PAGE_ROWS, (this.page + 1) * PAGE_ROWS);
      byId("trade-table").tBodies[0].replaceChildren(...shown.map((trade) => this.row(trade)));
      for (const cell of this.heads) {
        if (cell.dataset.key === this.sorted.key) cell.setAttribute("aria-sort", this.sorted.sign > 0 ? "ascending" : "descending");
        else cell.removeAttribute("aria-sort");
      }
      const won = rows.filter((trade) => trade.exitMs != null && trade.result > 0).length;
      const done = rows.filter((trade) => trade.exitMs != null).length;
      const result = rows.reduce((sum, trade) => sum + trade.result, 0);
      byId("trade-sum").textContent =
        `${rows.length.toLocaleString("en-US")} of ${trades.length.toLocaleString("en-US")} trades, result ${fixed(result, 2, "always")} USD` +
        (done ? `, ${fixed((100 * won) / done, 1)} % won` : "") + (pages > 1 ? ` · page ${this.page + 1} of ${pages}` : "");
      this.back.disabled = this.page === 0;
      this.next.disabled = this.page >= pages - 1;
    }
    row(trade) {
      return make("tr", {}, ...this.columns.map((column) => {
        const text = shown(column, trade[column.key]);
        const cell = make("td", { className: `${column.kind} ${toneOf(column, trade[column.key])}`.trim() });
        cell.dataset.label = column.head;
        if (column.key === "number" && data.markets[trade.market])
          cell.append(make("button", { type: "button", title: "Show on the chart", textContent: text, onclick: () => this.chart.show(trade) }));
        else cell.textContent = text;
        return cell;
      }));
    }
  }

  // -- light and dark

  function remembered() {
    try {
      return localStorage.getItem("report-theme");
    } catch {
      return null; // A browser may forbid storage to a file.
    }
  }
  const themes = [...document.querySelectorAll("input[name=theme]")];
  for (const theme of themes) theme.checked = theme.value === (remembered() ?? "auto");
  const chart = new TimeChart();
  controls(chart);
  if (trades.length) new TradeTable(chart);
  for (const theme of themes)
    theme.onchange = () => {
      try {
        localStorage.setItem("report-theme", theme.value);
      } catch {
        // Without storage the choice lasts as long as the page.
      }
      chart.rebuild();
    };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.rebuild());
})();
