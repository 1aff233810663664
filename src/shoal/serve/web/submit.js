// A form to submit a job.
import { call } from "./api.js";
import { h } from "./dom.js";

const random = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Show the form; a job that is accepted is opened. */
export function submitDialog() {
  const key = random(); // a second press of the button submits the same job
  const problem = h("p.bad", { role: "alert", hidden: true });
  const field = (name, label, props, note) => h("label", {}, h("span", {}, label), h("input", { name, ...props }), note && h("small", {}, note));
  const close = () => dialog.remove();
  async function send(event) {
    event.preventDefault();
    const given = new FormData(form), text = (name) => String(given.get(name) || "").trim();
    const body = { command: ["bash", "-c", text("command")], name: text("name") || "job", gpus: Number(given.get("gpus")), key };
    if (text("workdir")) body.workdir = text("workdir");
    if (text("minutes")) body.work = 60 * Number(given.get("minutes"));
    if (given.get("hold")) body.hold = true;
    problem.hidden = true;
    try {
      const { jobs } = await call("POST", "/v1/jobs", body);
      close();
      location.hash = `#/job/${encodeURIComponent(jobs[0])}`;
    } catch (refusal) {
      problem.textContent = refusal.message;
      problem.hidden = false;
    }
  }
  const form = h("form", { onsubmit: send },
    h("h2", { id: "submit-title" }, "Submit a job"),
    h("label", {}, h("span", {}, "Command"), h("textarea", { name: "command", rows: "3", required: true, spellcheck: "false", placeholder: "python train.py" }), h("small", {}, "run by bash, once for each GPU")),
    field("name", "Name", { value: "job", pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]*", maxlength: "64", required: true }),
    field("gpus", "GPUs", { type: "number", min: "1", value: "1", required: true }),
    field("minutes", "Expected length", { type: "number", min: "0.1", step: "any" }, "minutes on these GPUs, if known: it makes expected starts better"),
    field("workdir", "Folder", { placeholder: "/shared/project" }, "on the node; empty for a folder of its own"),
    h("label.check", {}, h("input", { type: "checkbox", name: "hold" }), "hold it until it is released"),
    problem,
    h("div.actions", {}, h("button", { type: "button", onclick: close }, "Close"), h("button.primary", { type: "submit" }, "Submit")));
  const dialog = h("dialog.submit", { "aria-labelledby": "submit-title", onclose: close }, form);
  document.body.append(dialog);
  dialog.showModal();
}
