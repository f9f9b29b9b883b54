"""Comparisons with error bars: a plan of runs, the runs that it lacks, paired statistics, and a report.

python -m fractal_ssm.compare ablation=measures budget=cpu seeds=5
"""
