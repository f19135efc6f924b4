"""The slow, obvious forms of what `recoup.jagged` does with arrays."""


def row(rows, u):
    """Return row u as plain values: IDs, and weights if there are any."""
    low, high = int(rows.start[u]), int(rows.start[u]) + int(rows.length[u])
    weights = None if rows.weights is None else tuple(rows.weights[low:high].tolist())
    return tuple(rows.values[low:high].tolist()), weights


def samples(ikjt):
    """Return every sample as a dict of its rows."""
    result = []
    for b in range(ikjt.num_samples):
        sample = {}
        for group in ikjt.groups:
            u = int(ikjt.inverse[group.name][b]) if group.name in ikjt.inverse else b
            sample |= {key: row(ikjt.rows[key], u) for key in group.features}
        result.append(sample)
    return result


def distinct(ikjt, features):
    """Return how many distinct rows the features have together."""
    return len({tuple(sample[key] for key in features) for sample in samples(ikjt)})
