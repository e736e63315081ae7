/* Before anything is drawn: the reader's choice of dark or light, where there is one. */
try {
  const chosen = localStorage.getItem("fedpoint-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing: the system decides.
}
