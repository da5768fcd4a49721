#pragma once

// Statistics that are robust on a noisy machine.

#include <vector>

namespace psd::bench {

// Returns the value that `fraction` of `values` do not exceed; for 0.5 this is the median.
// Requires: values is not empty; 0 <= fraction <= 1.
double Quantile(std::vector<double> values, double fraction);

inline double Median(const std::vector<double>& values) {
  return Quantile(values, 0.5);
}

// Returns the interquartile range of `values` divided by their median. 0 for a single value.
// Requires: values is not empty; the median is not 0.
double Spread(const std::vector<double>& values);

// Returns a[i] / b[i] for all i. Requires: equal lengths; no zero in b.
std::vector<double> Ratios(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace psd::bench
