#pragma once

// One row per case, for people or for machines.

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
  std::optional<double> speedup;     // the peer's time / psd's: above 1, psd is faster
  std::optional<double> floor;       // what the machine allows, in `unit`
  std::optional<double> efficiency;  // the floor's time / psd's: 1, psd is at the limit
  std::optional<double> spread;      // of the speedup if there is one, else of the efficiency
};

// {"case": "call_empty", "carrier": "grpc", …}: absent numbers are null.
std::string RowAsJson(const Row& row);

// Columns for people: the head, and a row under it.
std::string TableHead();
std::string RowAsText(const Row& row);

}  // namespace psd::bench
