#pragma once

// Prints one row per case, for people or for programs.

#include <optional>
#include <string>
#include <vector>

namespace psd::bench {

struct Row {
  std::string name;
  std::string carrier;
  std::string unit;
  double value = 0;                  // psd's median, in `unit`
  std::optional<double> p99;         // of latencies, in `unit`
  std::optional<double> peer;        // the peer's median, in `unit`
  std::optional<double> speedup;     // the peer's time / psd's; psd is faster if it is above 1
  std::optional<double> floor;       // the floor's median, in `unit`
  std::optional<double> efficiency;  // the floor's time / psd's; psd is at the limit if it is 1
  // Spread of the speedup if there is one, otherwise of the efficiency.
  std::optional<double> spread;
};

// Returns {"case": "call_empty", "carrier": "grpc", …}. Absent numbers are null.
std::string RowAsJson(const Row& row);

// Columns for people: the heading, and a row below it.
std::string TableHead();
std::string RowAsText(const Row& row);

}  // namespace psd::bench
