"use strict";
// Draws the charts with lightweight-charts over the picture that the server has drawn. Without the library the picture stays.
(() => {
  const library = window.LightweightCharts;
  const figure = document.querySelector("figure[data-chart]");
  if (!library || !figure) return;
  const canvas = figure.querySelector(".canvas");
  // The library wants the colour itself, and not the rule that chooses it for light or dark.
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const money = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const overlayColours = ["overlay-0", "overlay-1", "overlay-2", "overlay-3"];
  const lineStyle = library.LineStyle;

  // An instant in seconds as a text in the zone that the person chose.
  const whole = (time) => window.pageTime(time * 1000);
  const layout = () => ({
    autoSize: true,
    layout: { background: { type: "solid", color: "transparent" }, textColor: colour("muted"), attributionLogo: true, fontFamily: "system-ui, sans-serif",
      panes: { separatorColor: colour("line"), separatorHoverColor: colour("line") } },
    grid: { vertLines: { color: colour("grid") }, horzLines: { color: colour("grid") } },
    rightPriceScale: { borderColor: colour("line") },
    timeScale: { borderColor: colour("line"), timeVisible: true, secondsVisible: false, rightOffset: 4,
      // Kinds of marks: year, month, day, time, time with seconds.
      tickMarkFormatter: (time, kind) => [(text) => text.slice(7, 11), (text) => text.slice(3, 6), (text) => text.slice(0, 6), (text) => text.slice(12, 17), (text) => text.slice(12)][kind](whole(time)) },
    crosshair: { mode: library.CrosshairMode.Normal },
    localization: { timeFormatter: (time) => whole(time).slice(0, -3) },
  });
  const decimals = (price) => Math.min(8, Math.max(2, 5 - Math.floor(Math.log10(Math.abs(price) || 1))));

  const begin = () => {
    canvas.replaceChildren();
    canvas.removeAttribute("aria-hidden"); // The logo of the library is a link.
    return library.createChart(canvas, layout());
  };

  const drawValue = (data) => {
    if (data.value.length < 2) return null;
    const chart = begin();
    const style = () => ({ lineColor: colour("accent"), topColor: colour("accent-soft"), bottomColor: "transparent", lineWidth: 2 });
    const series = chart.addSeries(library.AreaSeries, { ...style(), priceFormat: { type: "custom", formatter: (value) => money.format(value), minMove: 0.01 } });
    const set = (points) => series.setData(points.map(([time, value]) => ({ time, value })));
    set(data.value);
    const dash = () => ({ price: data.week_ago, color: colour("bench"), lineStyle: lineStyle.Dashed, lineWidth: 1, title: "7 days ago" });
    const before = data.week_ago === null ? null : series.createPriceLine(dash());
    chart.timeScale().applyOptions({ rightOffset: 0 });
    chart.timeScale().fitContent();
    return { update: (fresh) => set(fresh.value), theme: () => { chart.applyOptions(layout()); series.applyOptions(style()); before?.applyOptions(dash()); } };
  };

  const drawCandles = (data) => {
    if (!data.candles.length) return null;
    const chart = begin();
    const precision = decimals(data.candles.at(-1)[4]);
    const numbers = new Intl.NumberFormat("en-US", { minimumFractionDigits: precision, maximumFractionDigits: precision });
    const priceFormat = { type: "custom", formatter: (price) => numbers.format(price), minMove: 10 ** -precision };
    // Rising candles are hollow and falling ones are filled, so that the colour is not the only sign.
    const style = () => ({ priceLineColor: colour("accent"), upColor: "transparent", borderUpColor: colour("up"), wickUpColor: colour("up"), downColor: colour("down"), borderDownColor: colour("down"), wickDownColor: colour("down") });
    const candles = chart.addSeries(library.CandlestickSeries, { ...style(), priceFormat }, 0);
    const volume = chart.addSeries(library.HistogramSeries, { priceFormat: { type: "volume" }, priceLineVisible: false, lastValueVisible: false }, 1);
    const candle = ([time, open, high, low, close]) => ({ time, open, high, low, close });
    const bar = ([time, open, , , close, value]) => ({ time, value, color: colour(close >= open ? "up-soft" : "down-soft") });
    candles.setData(data.candles.map(candle));
    volume.setData(data.candles.map(bar));
    const overlays = new Map();
    data.overlays.forEach((one, n) => {
      const series = chart.addSeries(library.LineSeries, { color: colour(overlayColours[n % 4]), lineWidth: 1.5, priceLineVisible: false, lastValueVisible: false, crosshairMarkerVisible: false, ...(one.pane === 0 ? { priceFormat } : {}) }, one.pane);
      series.setData(one.values.map(([time, value]) => ({ time, value })));
      overlays.set(one.name, { series, n });
    });
    chart.panes().forEach((pane, n) => pane.setStretchFactor(n === 0 ? 6 : 1));
    const markers = library.createSeriesMarkers(candles, []);
    const lines = new Map();
    const styleOf = (kind) => ({
      entry: { color: colour("muted"), lineStyle: lineStyle.Solid }, stop: { color: colour("down"), lineStyle: lineStyle.Dashed },
      target: { color: colour("up"), lineStyle: lineStyle.Dashed }, liquidation: { color: colour("bad"), lineStyle: lineStyle.Dotted },
      limit: { color: colour("accent"), lineStyle: lineStyle.LargeDashed },
    })[kind];
    const draw = (fresh) => {
      markers.setMarkers(fresh.fills.map((one) => ({ time: one.time, position: one.side === "bought" ? "belowBar" : "aboveBar", shape: one.side === "bought" ? "arrowUp" : "arrowDown", color: colour(one.side === "bought" ? "accent" : "violet"), size: 1 })));
      const wanted = new Map();
      for (const one of fresh.lines) wanted.set(wanted.has(one.kind) ? one.text : one.kind, one);
      for (const [name, line] of lines) if (!wanted.has(name)) { candles.removePriceLine(line); lines.delete(name); }
      for (const [name, one] of wanted) {
        const options = { price: one.px, title: one.kind, lineWidth: 1, axisLabelVisible: true, ...styleOf(one.kind) };
        if (lines.has(name)) lines.get(name).applyOptions(options); else lines.set(name, candles.createPriceLine(options));
      }
    };
    draw(data);
    let last = data.candles.at(-1)[0];
    // Lines count for the scale if they are near the candles, so that the stop is in view.
    candles.applyOptions({ autoscaleInfoProvider: (original) => {
      const found = original();
      if (!found) return found;
      const { minValue, maxValue } = found.priceRange, reach = maxValue - minValue;
      for (const line of lines.values()) {
        const px = line.options().price;
        if (px > minValue - reach && px < maxValue + reach) { found.priceRange.minValue = Math.min(found.priceRange.minValue, px); found.priceRange.maxValue = Math.max(found.priceRange.maxValue, px); }
      }
      return found;
    } });
    const shown = Math.min(data.candles.length, Math.floor(canvas.clientWidth / 9));
    chart.timeScale().setVisibleLogicalRange({ from: data.candles.length - shown, to: data.candles.length + 4 });
    return {
      update: (fresh) => {
        const newest = fresh.candles.at(-1)?.[0] ?? last;
        if (newest < last) return location.reload(); // The series began anew: a reset, or a clock that was set back.
        for (const one of fresh.candles) if (one[0] >= last) { candles.update(candle(one)); volume.update(bar(one)); }
        for (const one of fresh.overlays) for (const [time, value] of one.values) if (time >= last) overlays.get(one.name)?.series.update({ time, value });
        last = newest;
        draw(fresh);
        figure.dataset.last = JSON.stringify(fresh.candles.at(-1));
      },
      theme: () => { chart.applyOptions(layout()); candles.applyOptions(style()); for (const { series, n } of overlays.values()) series.applyOptions({ color: colour(overlayColours[n % 4]) }); },
    };
  };

  const draw = { value: drawValue, candles: drawCandles }[figure.dataset.chart];
  fetch(figure.dataset.source).then((answer) => answer.ok ? answer.json() : null).then((data) => {
    const drawn = data && draw(data);
    if (!drawn) return;
    figure.dataset.ready = "yes";
    window.addEventListener("chart", (event) => drawn.update(event.detail));
    window.addEventListener("theme", () => drawn.theme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.theme());
  });
})();
