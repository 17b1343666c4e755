// Browsers do not start workers from file:// addresses. There, run the script of a worker in a hidden frame instead, so
// that the search works without a web server.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.onmessage = null;
      this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.scope = new Promise((resolve) => {
        const start = () => {
          const scope = this.frame.contentWindow;
          scope.postMessage = (data) => setTimeout(() => this.onmessage?.(new MessageEvent("message", { data })));
          const script = scope.document.createElement("script");
          script.src = new URL(address, location);
          script.onload = () => resolve(scope);
          script.onerror = (event) => this.onerror?.(event);
          scope.document.body.append(script);
        };
        this.frame.addEventListener("load", start, { once: true });
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.onmessage?.(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
