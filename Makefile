.PHONY: demo test fix

demo:
	python3 dev.py demo

test:
	python3 dev.py test

fix:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
