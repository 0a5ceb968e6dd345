// Light, dark or as the system has it. Runs in the head, before anything is painted; the others run when all is there.
"use strict";
(() => {
  const CHOICES = ["auto", "light", "dark"];
  const KEY = "replastic-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let choice = "auto";

  // A page that is opened from a folder may have no storage, and then even asking for it throws.
  try {
    const kept = localStorage.getItem(KEY);
    if (CHOICES.includes(kept)) choice = kept;
  } catch {}

  function apply() {
    const theme = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (!button) return;
    button.hidden = false;
    button.textContent = `Theme: ${choice}`;
  }

  apply();
  dark.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try {
        localStorage.setItem(KEY, choice);
      } catch {}
      apply();
    });
    apply();
  });
})();
