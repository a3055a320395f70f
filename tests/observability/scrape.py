"""What /metrics says, as numbers."""

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.people import Person
from tests.site import METRICS_TOKEN

Key = tuple[str, frozenset[tuple[str, str]]]


class Scrape:
    """The samples of one answer."""

    def __init__(self, text: str) -> None:
        self.values: Mapping[Key, float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def sum(self, name: str, **labels: str) -> float:
        """Of all samples of this name that have these labels."""
        wanted = set(labels.items())
        return sum(value for (other, having), value in self.values.items() if other == name and wanted <= having)

    def labels(self) -> set[tuple[str, str]]:
        """Every label and its value, but for buckets' bounds."""
        return {label for _, labels in self.values for label in labels if label[0] != "le"}


def scrape(url: str) -> Scrape:
    response = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"}, timeout=30)
    assert response.status_code == 200, response.text
    return Scrape(response.text)


def complete(person: Person, url: str, order: str, **headers: str) -> httpx.Response:
    """One streamed completion, read to its end."""
    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": f"[[{order}]]"}]}
    with person.http(url) as http:
        response = http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200 and "[DONE]" in response.text, response.text
    return response
