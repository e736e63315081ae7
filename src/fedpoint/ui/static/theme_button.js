/* The button for dark or light. */
export function themeButton() {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem("fedpoint-theme", root.dataset.theme);
    } catch {
      // It holds until the page is closed.
    }
  });
}
