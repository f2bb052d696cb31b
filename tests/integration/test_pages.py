"""The pages of the management interface in headless Chromium: each loads, and its forms do what they say.

Longer than 500 lines because all cases share a browser's helpers and one broker.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker import HOST, Broker, external_broker, free_port, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, tcp
from tests.management import ManagementSite

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.common import exceptions  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = pytest.mark.once

PATIENCE = 15.0
PASSING = (
    exceptions.StaleElementReferenceException,
    exceptions.ElementClickInterceptedException,
    exceptions.NoSuchElementException,
)
"""Errors of elements that have just been replaced, or covered."""
WITHOUT_NETWORK = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1280,900"),
)
PAGES = {
    "": "Messages in queues",
    "nodes": "Processes of",
    "queues": "Add a queue",
    "exchanges": "Add an exchange",
    "connections": "Clients of all nodes",
    "channels": "AMQP channels",
    "clients": "Part of a client identifier",
    "subscriptions": "Part of a topic filter",
    "retained": "Part of a topic",
    "groups": "Groups of this node",
    "cores": "Pinned here",
    "alarms": "Nothing is wrong.",
    "log": "the newest first",
    "bans": "Who may not connect",
    "policies": "Set a policy",
    "vhosts": "Add a virtual host",
    "users": "Set permissions",
    "definitions": "Import",
    "exchange/%2F/amq.topic": "Bindings from and to",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of two shards."""
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    settings = {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{free_port()}"}}}}
    folder = tmp_path_factory.mktemp("pages")
    with running_broker(folder, workers=2, settings=settings) as broker:
        yield broker


class Page:
    """A browser, as a person uses it."""

    def __init__(self, driver: Any, broker: Broker) -> None:
        self.driver = driver
        self.address = f"http://{HOST}:{broker.http_port}/"

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something is so, or can be done: the page may just be shown anew."""
        WebDriverWait(self.driver, PATIENCE, ignored_exceptions=PASSING).until(
            lambda _: condition()
        )

    def click(self, path: str) -> None:
        """Click an element, given as XPath."""

        def clicked() -> bool:
            self.driver.find_element(By.XPATH, path).click()
            return True

        self.wait(clicked)

    def follow(self, text: str) -> None:
        """Click a link in the page."""
        self.click(f"//main//a[normalize-space()='{text}']")

    @property
    def text(self) -> str:
        """Text on the page."""
        return str(self.driver.find_element(By.TAG_NAME, "body").text)

    def shows(self, text: str) -> None:
        """Wait until a text is shown."""
        self.wait(lambda: text in self.text)

    def open(self, page: str, text: str) -> None:
        """Go to a page, and wait for a text of it."""
        self.driver.get(f"{self.address}#/{page}")
        self.shows(text)

    def form(self, button: str) -> Any:
        """The form that a button belongs to."""
        path = f"//form[.//button[@type='submit' and normalize-space()='{button}']]"
        return self.driver.find_element(By.XPATH, path)

    def fill(self, button: str, **values: str) -> None:
        """Fill in a form and send it."""

        def filled() -> bool:
            form = self.form(button)
            for name, value in values.items():
                field = form.find_element(By.NAME, name)
                if field.tag_name == "select":
                    Select(field).select_by_visible_text(value)
                else:
                    field.clear()
                    field.send_keys(value)
            form.find_element(By.CSS_SELECTOR, "button[type=submit]").click()
            return True

        self.wait(filled)

    def press(self, button: str) -> None:
        """Press a button outside of forms."""
        self.click(f"//main//button[normalize-space()='{button}' and @type='button']")

    def confirm(self, name: str) -> None:
        """Enter the name of what is destroyed."""
        self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, "dialog input"))
        self.driver.find_element(By.CSS_SELECTOR, "dialog input").send_keys(name, Keys.ENTER)
        self.wait(lambda: not self.driver.find_elements(By.CSS_SELECTOR, "dialog"))

    def log_in(self) -> None:
        """Log in as guest."""
        self.open("", "Log in")
        self.fill("Log in", name="guest", password="guest")
        self.shows("Messages in queues")

    def errors(self) -> list[str]:
        """Errors of the console since the last call."""
        return [str(each["message"]) for each in self.driver.get_log("browser")]

    def picture(self, name: str) -> None:
        """Save a picture where FLUXMQ_PICTURES says."""
        folder = os.environ.get("FLUXMQ_PICTURES")
        if folder:
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.fixture
def page(site: Broker, tmp_path: Path) -> Iterator[Page]:
    """A browser of its own."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    for argument in (*WITHOUT_NETWORK, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(argument)
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield Page(browser, site)
    finally:
        browser.quit()


def test_every_page_loads_without_errors(page: Page) -> None:
    page.log_in()
    for name, text in PAGES.items():
        page.open(name, text)
        page.picture(name.split("/", maxsplit=1)[0] or "overview")
        assert page.errors() == []
        current = page.driver.find_elements(By.CSS_SELECTOR, "nav [aria-current=page]")
        assert len(current) == 1
    page.driver.set_window_size(390, 800)
    for name, text in PAGES.items():
        page.open(name, text)
        width = page.driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= 390, f"{name} is wider than a telephone"


def test_a_wrong_password_says_so(page: Page) -> None:
    page.open("", "Log in")
    page.fill("Log in", name="guest", password="wrong")
    page.shows("Login failed")
    page.fill("Log in", name="guest", password="guest")
    page.shows("Messages in queues")
    page.click("//button[normalize-space()='Log out']")
    page.shows("Password")
    page.driver.refresh()
    page.shows("Password")


def test_a_queue_from_its_declaration_to_its_end(page: Page) -> None:
    """S3-22, S3-24: each type offers its arguments; messages are published, got, purged."""
    page.log_in()
    page.open("queues", "Add a queue")
    page.shows("x-max-priority")
    page.fill("Add queue", name="made here", type="quorum", arguments="x-max-length = 5")
    page.shows("Queue made here declared.")
    assert "x-delivery-limit" not in page.text, "the form is as new"
    page.wait(lambda: offered(page, "stream", "x-max-age"))
    page.follow("made here")
    page.shows('"x-max-length":5')
    page.shows("Settings, and where they come from")
    for payload in ("first", "second"):
        page.fill("Publish", payload=payload, headers="n = 1")
        page.shows("Published, and safe.")
    page.fill("Get messages", count="2", mode="ack_requeue_false")
    page.shows("first")
    page.shows("second")
    page.picture("queue")
    page.fill("Get messages", count="1")
    page.shows("The queue is empty.")
    page.press("Purge")
    page.confirm("made here")
    page.shows("Purged.")
    page.press("Delete")
    page.confirm("made here")
    page.shows("Deleted.")
    page.open("queues", "Add a queue")
    assert "made here" not in page.text
    assert page.errors() == []


MIRRORED = {
    "leader": "n1",
    "members": ["n1", "n2"],
    "messages": 100,
    "slave_nodes": ["n2", "n3"],
    "synchronised_slave_nodes": ["n2"],
    "mirrors_syncing": False,
}
SHOWN = """
const [name, row, done] = arguments;
const sent = [];
const context = {
  api: { has: () => true, send: async (...request) => sent.push(request) },
  act: async (text, act) => { await act(); },
};
import("/views_mirrors.js").then((views) => {
  const box = document.createElement("div");
  box.append(...[views[name].length > 1 ? views[name](context, row, "queues/%2F/q") : views[name](row)].flat());
  box.querySelector("button")?.click();
  const bar = box.querySelector("progress");
  done([box.textContent, sent, bar ? bar.value / bar.max : null]);
});
"""


@pytest.mark.parametrize(
    ("view", "changed", "text", "sent", "share"),
    [
        ("replicas", {}, "n1 +1+1 unsynchronised", [], None),
        ("replicas", {"slave_nodes": []}, "n1 +1", [], None),
        ("replicas", {"slave_nodes": None}, "n1+1", [], None),
        ("replicas", {"slave_nodes": None, "members": ["n1"]}, "n1", [], None),
        ("mirrors", {}, "n2n3 (unsynchronised)", [], None),
        ("mirrors", {"slave_nodes": []}, "none is online", [], None),
        ("mirrors", {"slave_nodes": None}, "", [], None),
        ("synchronisation", {}, "SynchronisationSynchronise", ["sync"], None),
        ("synchronisation", {"slave_nodes": ["n2"]}, "", [], None),
        ("synchronisation", {"slave_nodes": None}, "", [], None),
        (
            "synchronisation",
            {"mirrors_syncing": True, "migration": "copying, 25 messages left"},
            "Synchronisation 25 messages leftCancel",
            ["cancel_sync"],
            0.75,
        ),
        (
            "synchronisation",
            {"mirrors_syncing": True, "migration": "waiting"},
            "SynchronisationCancel",
            ["cancel_sync"],
            0,
        ),
    ],
)
def test_mirrors_are_shown_and_synchronised(
    page: Page, view: str, changed: Any, text: str, sent: list[str], share: float | None
) -> None:
    """S3-06, S4-18, S4-57: a list has the number of mirrors, a page their nodes and how to synchronise them."""
    page.open("", "Log in")
    found = page.driver.execute_async_script(SHOWN, view, MIRRORED | changed)
    actions = [["POST", "queues/%2F/q/actions", {"action": each}] for each in sent]
    assert found == [text, actions, share]
    assert page.errors() == []


def offered(page: Page, kind: str, argument: str) -> bool:
    """Choose a type of queue; return whether an argument is offered then."""
    Select(page.form("Add queue").find_element(By.NAME, "type")).select_by_visible_text(kind)
    return argument in page.text


def test_refusals_are_shown(page: Page) -> None:
    page.log_in()
    page.open("queues", "Add a queue")
    page.fill("Add queue", name="wrong", arguments="x-expires = -1")
    page.shows("invalid arg 'x-expires'")
    page.fill("Add queue", name="wrong", arguments="x-expires")
    page.shows('no "="')


def test_users_policies_and_virtual_hosts(page: Page) -> None:
    page.log_in()
    page.open("vhosts", "Add a virtual host")
    page.fill("Add virtual host", name="team", description="of the team", type="quorum")
    page.shows("of the team")
    page.open("users", "Set permissions")
    page.fill("Set user", name="ann", password="secret", tags="management")
    page.shows("User ann set.")
    page.fill("Set permissions", user="ann", vhost="team", configure="^ann")
    page.shows("^ann .* .*")
    page.open("policies", "Set a policy")
    page.fill("Set policy", name="short", pattern="^s", definition="max-length = 3")
    page.shows('{"max-length":3}')
    page.press("Clear")
    page.confirm("short")
    page.shows("Cleared.")
    page.fill(
        "Set policy",
        kind="operator policy",
        name="tight",
        pattern="^t",
        definition="max-length = 4",
    )
    page.shows("Operator policy tight set.")
    page.press("Clear")
    page.confirm("tight")
    page.wait(lambda: "tight" not in page.text)
    assert page.errors() == []


def test_names_are_text(page: Page) -> None:
    """Names chosen by clients cannot run as scripts in an administrator's browser."""
    page.log_in()
    name = "<img src=x onerror=alert(1)>"
    page.open("queues", "Add a queue")
    page.fill("Add queue", name=name)
    page.shows(name)
    assert not page.driver.find_elements(By.CSS_SELECTOR, "main img")
    page.follow(name)
    page.shows("Get messages")
    assert page.errors() == []


def test_the_keyboard_is_enough(page: Page) -> None:
    page.open("", "Log in")

    def press(*keys: str) -> None:
        page.driver.switch_to.active_element.send_keys(*keys)

    press("guest", Keys.TAB)
    press("guest", Keys.ENTER)
    page.shows("Messages in queues")
    page.driver.execute_script("document.querySelector('.skip').focus()")
    for _ in range(30):
        press(Keys.TAB)
        if page.driver.switch_to.active_element.text == "Queues":
            break
    press(Keys.ENTER)
    page.shows("Add a queue")
    for _ in range(60):
        press(Keys.TAB)
        if page.driver.switch_to.active_element.text == "Add queue":
            return
    raise AssertionError("the form cannot be reached")


def asked(page: Page) -> list[str]:
    """The requests to the interface that a page has made since it was loaded."""
    script = "return performance.getEntriesByType('resource').map(each => each.name)"
    return [each for each in page.driver.execute_script(script) if "/api/" in each]


def test_a_page_is_told_what_changes(page: Page, site: Broker) -> None:
    """By one stream of events, without asking again."""
    page.log_in()
    page.open("queues", "Add a queue")
    before = len(asked(page))
    api = ManagementSite(site.http_port)
    assert api.status("PUT", "queues/%2F/told") == 201
    page.shows("told")
    assert api.status("DELETE", "queues/%2F/told") == 204
    page.wait(lambda: "told" not in page.text)
    after = asked(page)[before:]
    assert not [each for each in after if "/api/queues?" in each]
    assert page.errors() == []


def test_a_page_asks_again_where_streams_are_refused(page: Page, site: Broker) -> None:
    """As where a proxy holds them back."""
    page.log_in()
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/fluxmq/v1/events*"]})
    page.open("queues", "Add a queue")
    api = ManagementSite(site.http_port)
    assert api.status("PUT", "queues/%2F/polled") == 201
    page.shows("polled")
    assert [each for each in asked(page) if "/events?" in each]


def test_mqtt_clients_and_retained_messages(page: Page, site: Broker) -> None:
    with Client(tcp(site.host, site.port), wire.V5) as client:
        client.connect("meter 7")
        client.subscribe("plant/+/set", qos=1)
        client.publish("plant/7/state", b"<b>on</b>", retain=True, qos=1)
        page.log_in()
        page.open("clients", "meter 7")
        page.picture("clients")
        page.follow("meter 7")
        page.shows("plant/+/set")
        page.open("subscriptions", "plant/+/set")
        page.open("retained", "plant/7/state")
        page.press("Show")
        page.shows("<b>on</b>")
        page.picture("retained")
        page.press("Delete")
        page.confirm("plant/7/state")
        page.shows("Deleted.")
        page.wait(lambda: "plant/7/state" not in page.text)
        page.open("client/meter%207", "Session expires after")
        page.press("End session")
        page.confirm("meter 7")
        page.shows("Ended.")
        page.wait(lambda: "meter 7" not in page.text)
    assert page.errors() == []


def test_a_group_is_pinned_to_a_core(page: Page, site: Broker) -> None:
    assert ManagementSite(site.http_port).status("PUT", "queues/%2F/placed") == 201
    page.log_in()
    page.open("groups", "Groups of this node, which hold its queues")
    group = page.driver.find_element(By.CSS_SELECTOR, "tbody td").text
    page.picture("groups")
    page.open("cores", "Pin a group")
    page.fill("Pin", group=group, shard="shard-1")
    page.shows(f"Group {group} is pinned to shard-1.")
    page.picture("cores")
    page.press("Unpin")
    page.shows("is no longer pinned.")
    assert page.errors() == []


def test_a_group_is_pinned_by_dragging_it_and_by_a_key(page: Page, site: Broker) -> None:
    api = ManagementSite(site.http_port)
    assert api.status("PUT", "queues/%2F/dragged") == 201
    page.log_in()
    page.open("cores", "Drag a group to another shard")
    group = page.driver.find_element(By.CSS_SELECTOR, "button.group").text

    def held(shard: int) -> bool:
        row = page.driver.find_elements(By.CSS_SELECTOR, "main tbody tr")[shard]
        return group in [each.text for each in row.find_elements(By.CSS_SELECTOR, "button.group")]

    def button() -> Any:
        return page.driver.find_element(
            By.XPATH, f"//main//button[@draggable and text()='{group}']"
        )

    def dragged(shard: int) -> bool:
        row = page.driver.find_elements(By.CSS_SELECTOR, "main tbody tr")[shard]
        ActionChains(page.driver).drag_and_drop(button(), row).perform()
        return True

    here = 0 if held(0) else 1
    page.wait(lambda: dragged(1 - here))
    page.shows(f"Group {group} is pinned to shard-{1 - here}.")
    page.wait(lambda: held(1 - here))
    button().send_keys(Keys.ARROW_UP if here == 0 else Keys.ARROW_DOWN)
    page.shows(f"Group {group} is pinned to shard-{here}.")
    page.wait(lambda: held(here))
    page.press("Unpin")
    page.shows("is no longer pinned.")
    assert page.errors() == []


def test_the_log_is_shown_as_it_is_written(page: Page, site: Broker) -> None:
    """Lines of every process, chosen by level and text; new ones without asking again."""
    page.log_in()
    page.open("log", "control process ready")
    for text in ("shard-0", "shard-1", "acceptor", "listening"):
        page.shows(text)
    page.picture("log")
    page.fill("Show", level="warning", text="limit of open files")
    page.wait(lambda: "control process ready" not in page.text)
    page.fill("Show", level="info", text="definitions imported")
    page.shows("None.")
    assert ManagementSite(site.http_port).status("POST", "definitions", {"queues": []}) == 204
    page.shows("definitions imported  vhosts=0")
    api = ManagementSite(site.http_port)
    assert [api.status("GET", f"fluxmq/v1/log?{query}") for query in ("level=loud", "lines=x")] == [
        400,
        400,
    ]
    assert len(api.get("fluxmq/v1/log?lines=2")) == 2
    assert page.errors() == []


def test_bans_and_limits(page: Page) -> None:
    page.log_in()
    page.open("bans", "Who may not connect")
    page.fill("Ban", kind="MQTT client", value="a/b", minutes="5", reason="<b>too loud</b>")
    page.shows("The ban of a/b is in force.")
    page.shows("<b>too loud</b>")
    page.picture("bans")
    page.fill("Ban", value="nonsense")
    page.shows("no address and no network")
    page.open("vhosts", "Limit a virtual host")
    page.fill("Set limit", limit="max-queues", value="1000")
    page.shows('{"max-queues":1000}')
    page.fill("Set limit", limit="max-queues", value="")
    page.shows("Limit cleared.")
    page.open("users", "Limit a user")
    page.fill("Set limit", subject="guest", limit="max-channels", value="500")
    page.shows('{"max-channels":500}')
    page.open("bans", "too loud")
    page.press("Lift")
    page.confirm("a/b")
    page.shows("Lifted.")
    page.wait(lambda: "too loud" not in page.text)
    assert [each for each in page.errors() if "400" not in each] == []


READABLE = (Path(__file__).parent / "readable.js").read_text("utf-8")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read_and_operated(page: Page, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    page.log_in()
    for name, text in PAGES.items():
        page.open(name, text)
        assert page.driver.execute_script(READABLE) == [], name
