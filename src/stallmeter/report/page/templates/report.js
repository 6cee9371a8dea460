(function () {
  "use strict";
  var charts = JSON.parse(document.getElementById("charts").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var finger = window.matchMedia("(pointer: coarse)").matches;
  var config = { responsive: true, displayModeBar: false, displaylogo: false, doubleClick: "reset" };

  // Plotly is packed, which saves more than half of the file. The page's policy knows its hash and runs nothing else.
  function library() {
    var packed = window.atob(document.getElementById("library").textContent);
    var bytes = Uint8Array.from(packed, function (letter) { return letter.charCodeAt(0); });
    var stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text().then(function (code) {
      var script = document.createElement("script");
      script.textContent = code;
      document.head.appendChild(script);
    });
  }

  function failed(place, error) {
    place.textContent = "This chart could not be drawn: " + error;
  }

  // Figures name their colours var(--name); only values of colour keys are looked up, never a text.
  function coloured(node, style, key) {
    if (Array.isArray(node)) {
      return node.map(function (item) { return coloured(item, style, key); });
    }
    if (node !== null && typeof node === "object") {
      var copy = {};
      Object.keys(node).forEach(function (name) { copy[name] = coloured(node[name], style, name); });
      return copy;
    }
    var named = typeof node === "string" && /color$/.test(key) && /^var\((--[a-z0-9_-]+)\)$/.exec(node);
    return named ? style.getPropertyValue(named[1]).trim() : node;
  }

  function draw() {
    var style = window.getComputedStyle(document.documentElement);
    var font = window.getComputedStyle(document.body).fontFamily;
    Object.keys(charts).forEach(function (id) {
      var place = document.getElementById(id);
      var layout = coloured(charts[id].layout, style, "");
      layout.font.family = font;
      layout.hoverlabel.font.family = font;
      // A finger scrolls the page; only a mouse selects a range to zoom into.
      layout.dragmode = finger ? false : "zoom";
      Promise.resolve()
        .then(function () { return Plotly.react(place, coloured(charts[id].data, style, ""), layout, config); })
        .then(function () { place.setAttribute("data-drawn", dark.matches ? "dark" : "light"); })
        .catch(function (error) { failed(place, error); });
    });
  }

  new Promise(function (resolve) { resolve(library()); })
    .then(function () {
      draw();
      dark.addEventListener("change", draw);
    })
    .catch(function (error) {
      document.querySelectorAll(".drawing").forEach(function (place) { failed(place, error); });
    });
}());
