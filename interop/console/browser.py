"""A headless Chromium, driven over the DevTools protocol through a pipe. It needs Python's standard library only."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time


class BrowserError(Exception):
    """The browser answered with an error, or the page threw one."""


def find():
    """The program, or None."""
    wanted = os.environ.get("CHROMIUM")
    return wanted or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One process. `page()` opens a page with storage of its own."""

    def __init__(self, program=None):
        self.folder = tempfile.mkdtemp(prefix="console-browser-")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        # The browser reads at descriptor 3 and writes at 4. Both are moved out of the way first, as they may be these themselves.
        low = [os.dup2(to_browser, 103), os.dup2(from_browser, 104)]

        def place():
            os.dup2(low[0], 3)
            os.dup2(low[1], 4)

        self.process = subprocess.Popen(
            [program or find(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
             "--force-color-profile=srgb", f"--user-data-dir={self.folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4, 103, 104), preexec_fn=place)
        for end in (to_browser, from_browser, *low):
            os.close(end)
        self.number = 0
        self.answers = {}
        self.answered = threading.Condition()
        self.pages = {}
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        held = b""
        while True:
            try:
                more = os.read(self.read_end, 1 << 20)
            except OSError:
                more = b""
            if not more:
                with self.answered:
                    self.answers = None
                    self.answered.notify_all()
                return
            held += more
            *messages, held = held.split(b"\0")
            for raw in messages:
                message = json.loads(raw)
                if "id" in message:
                    with self.answered:
                        self.answers[message["id"]] = message
                        self.answered.notify_all()
                elif (page := self.pages.get(message.get("sessionId"))) is not None:
                    page.hear(message["method"], message["params"])

    def call(self, method, params=None, session=None, timeout=60):
        """Calls a method and returns its result."""
        with self.answered:
            self.number += 1
            number = self.number
        message = {"id": number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data):]
        deadline = time.monotonic() + timeout
        with self.answered:
            while self.answers is not None and number not in self.answers:
                if not self.answered.wait(deadline - time.monotonic()):
                    raise BrowserError(f"{method}: no answer within {timeout} s")
            if self.answers is None:
                raise BrowserError("the browser has gone")
            answer = self.answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def page(self, **options):
        """Opens a page with storage of its own."""
        return Page(self, **options)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for end in (self.write_end,):
            os.close(end)
        shutil.rmtree(self.folder, ignore_errors=True)


KEYS = {
    "Enter": ("Enter", 13, "\r"), "Tab": ("Tab", 9, None), "Escape": ("Escape", 27, None), "ArrowDown": ("ArrowDown", 40, None),
    "ArrowUp": ("ArrowUp", 38, None), "ArrowLeft": ("ArrowLeft", 37, None), "ArrowRight": ("ArrowRight", 39, None),
    "Home": ("Home", 36, None), "End": ("End", 35, None), "Backspace": ("Backspace", 8, None), " ": ("Space", 32, " "),
}


class Page:
    """A page and what it complained of: errors of scripts, of the console, and of the content security policy."""

    def __init__(self, browser, width=1280, height=900, language="en-US", scheme="light", scale=1):
        self.browser = browser
        self.complaints = []
        self.requests = []
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", {"url": "about:blank", "browserContextId": self.context})["targetId"]
        self.session = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        agent = browser.call("Browser.getVersion")["userAgent"]
        self.call("Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": language})
        self.call("Emulation.setLocaleOverride", {"locale": language})
        self.call("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.scheme(scheme)
        self.size(width, height, scale)
        # A violation is an event of the document; it is noted where the browser's log might not have it.
        self.call("Page.addScriptToEvaluateOnNewDocument", {"source":
            "window.violations = []; document.addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective + ' ' + e.blockedURI));"})

    def call(self, method, params=None, timeout=60):
        return self.browser.call(method, params, self.session, timeout)

    def hear(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            # An answer that is no success is the browser's to note, and the page's to show: it is no mistake of the page.
            if entry["source"] != "network":
                self.complaints.append(entry["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def size(self, width, height=900, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False})

    def scheme(self, scheme):
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def open(self, url):
        self.call("Page.navigate", {"url": url})

    def js(self, expression, timeout=60):
        """The value of an expression, which may be a promise."""
        result = self.call("Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}, timeout)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def wait(self, condition, what=None, timeout=15):
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                # An element is no value that could be sent.
                value = self.js(f"((found) => (found instanceof Node ? true : found))({condition.rstrip(';')})")
            except BrowserError as error:
                # A page that is being loaded has no context yet.
                if "context" not in str(error) and "Cannot read properties of null" not in str(error):
                    raise
                value = None
            if value:
                return value
            if time.monotonic() > deadline:
                raise BrowserError(f"waited {timeout} s for {what or condition}; the page shows: {self.text()[:700]!r}")
            time.sleep(0.05)

    def wait_text(self, text, within="body", timeout=15):
        return self.wait(f"document.querySelector({json.dumps(within)})?.innerText.includes({json.dumps(text)})", f"the text {text!r} in {within}", timeout)

    def text(self, selector="body"):
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector, text=None):
        """Clicks on the first element that the selector finds, with this text (or name) if one is given."""
        done = self.js(f"""(() => {{
            const wanted = {json.dumps(text)};
            const found = [...document.querySelectorAll({json.dumps(selector)})].find((each) => each.getClientRects().length > 0 && (wanted === null || each.innerText.trim() === wanted || each.getAttribute('aria-label') === wanted));
            if (!found) return false;
            found.scrollIntoView({{ block: 'center' }});
            found.click();
            return true;
        }})()""")
        if not done:
            raise BrowserError(f"nothing to click on: {selector} {text or ''}; the page shows: {self.text()[:700]!r}")

    def fill(self, selector, value):
        """Types into a field as a script would: sets the value, and says so."""
        done = self.js(f"""(() => {{
            const field = document.querySelector({json.dumps(selector)});
            if (!field) return false;
            field.focus();
            field.value = {json.dumps(value)};
            field.dispatchEvent(new Event('input', {{ bubbles: true }}));
            field.dispatchEvent(new Event('change', {{ bubbles: true }}));
            return true;
        }})()""")
        if not done:
            raise BrowserError(f"no field {selector}")

    def key(self, name, shift=False):
        """Presses a key, as the keyboard does."""
        code, number, text = KEYS.get(name, (f"Key{name.upper()}", ord(name.upper()) if len(name) == 1 else 0, name))
        base = {"key": name, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        down = {"type": "keyDown", **base}
        if text:
            down["text"] = text
        else:
            down["type"] = "rawKeyDown"
        self.call("Input.dispatchKeyEvent", down)
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **base})

    def type(self, text):
        for char in text:
            self.key(char)

    def picture(self, whole=False):
        """A picture of the page as PNG."""
        params = {"format": "png"}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            params.update({"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}})
        return base64.b64decode(self.call("Page.captureScreenshot", params)["data"])

    def close(self):
        self.browser.pages.pop(self.session, None)
        self.browser.call("Target.disposeBrowserContext", {"browserContextId": self.context})
