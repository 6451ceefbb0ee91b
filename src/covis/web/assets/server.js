"use strict";
// Requests to the service, with the key that it asks for.
const CovisServer = (() => {
  const key = () => sessionStorage.getItem("covis-key") || "";
  async function call(path, options = {}) {
    const headers = { ...(options.headers || {}), ...(key() ? { Authorization: `Bearer ${key()}` } : {}) };
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    let why = response.statusText;
    try { why = (await response.json()).detail; } catch { /* no JSON: the status must do */ }
    if (response.status === 401 && (await askForKey(why))) return call(path, options);
    throw new Error(why || `the server answered ${response.status}`);
  }
  let asking = null;
  function askForKey(why) {
    asking = asking || new Promise((done) => {
      const dialog = document.getElementById("key-dialog"), input = document.getElementById("key");
      document.getElementById("key-reason").textContent = why;
      dialog.returnValue = "";
      dialog.addEventListener("close", () => {
        const given = dialog.returnValue === "use" && input.value.trim() !== "";
        if (given) sessionStorage.setItem("covis-key", input.value.trim());
        input.value = "";
        asking = null;
        done(given);
      }, { once: true });
      dialog.showModal();
    });
    return asking;
  }
  return { call };
})();
