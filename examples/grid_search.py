"""A scikit-learn grid search on the cores of a cluster.

    pip install scikit-learn
    python examples/grid_search.py

By default the cluster is this machine; for another one, first call remotely.connect("host:8010").
"""

try:
    import joblib
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install scikit-learn") from None

import remotely

GRID = {"C": [0.1, 1.0, 10.0], "gamma": [1e-4, 1e-3, 1e-2]}


def main() -> None:
    remotely.register_joblib()
    pictures, digits = load_digits(return_X_y=True)
    search = GridSearchCV(SVC(), GRID, cv=3)
    with joblib.parallel_config(backend="remotely"):  # all cores; n_jobs=8 would use 8
        search.fit(pictures[:600], digits[:600])
    print(f"{search.n_splits_ * len(search.cv_results_['params'])} fits")
    print(f"best: {search.best_params_}, right in {search.best_score_:.1%}")
    remotely.shutdown()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
