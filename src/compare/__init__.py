"""Comparisons with an error bar: a plan of runs, what of it is missing, paired statistics, a report.

python -m fractal_ssm.compare ablation=measures budget=cpu seeds=5
"""
