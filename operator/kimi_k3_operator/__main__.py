"""`python -m kimi_k3_operator` runs the operator."""

from kimi_k3_operator.runtime.main import main

if __name__ == "__main__":
    main()
