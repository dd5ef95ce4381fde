.PHONY: demo test fix

demo:
	python3 dev.py demo

test:
	python3 dev.py test

fix:
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .
