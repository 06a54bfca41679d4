"use strict";
// The code of a link stands behind the #, which no browser sends. This puts it into the form.
(() => {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  document.getElementById("code").value = code;
  document.querySelector("form").submit();
})();
