"""vcr: the model calls of a cassette, whatever their API; uploads and deletions are passed over."""

import yaml


def test_calls_of_two_providers(samples, read, said, plain):
    log, requests = read("vcr.yaml")
    bodies = [
        one["request"]["parsed_body"]
        for one in yaml.safe_load((samples / "vcr.yaml").read_text())["interactions"]
    ]
    assert log.format == "vcr" and len(requests) == len(bodies) == 4
    assert said(requests[0])[1:] == ["<user>", bodies[0]["contents"][0]["parts"][0]["text"]]
    for body, request in zip(bodies[2:], requests[2:], strict=True):
        assert request.messages == body["messages"] and request.tools == body["tools"]
    assert (
        requests[3].source_path("messages[0].content")
        == "interactions[3].request.parsed_body.messages[0].content"
    )
    assert requests[3].output["content"] == "The capital of England is London."


def test_only_model_calls_count(samples, read):
    interactions = yaml.safe_load((samples / "vcr-files.yaml").read_text())["interactions"]
    _, requests = read("vcr-files.yaml")
    assert len(interactions) == 7 and len(requests) == 2
    assert requests[1].messages[3]["content"] == "Tell me about the Eiffel Tower."
    assert requests[1].tools == [
        {"type": "file_search", "vector_store_ids": ["vs_6931d72a43048191bbe7518b93c1d8ed"]}
    ]
