"""python -m train experiment=lra/fractal-listops: see fractal_ssm.train."""

from fractal_ssm.train import main

if __name__ == "__main__":
    main()
