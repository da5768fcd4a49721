// Runs a libFuzzer target without libFuzzer. The inputs are first the files of the corpus and then
// random mutations of them. The same seed gives the same inputs, so a failure can be replayed:
//
//   some_fuzz [--seed=S] [--runs=N] [--only=K] [FILE...]
//
// --only=K runs only mutation K and prints it. A failing run prints its K.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Exists only in sanitizer builds.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

constexpr size_t kMaxInputBytes = size_t{64} << 10;
constexpr uint64_t kInteresting[] = {0,          1,          0x7f,       0x80,
                                     0xff,       0x7fff,     0xffff,     0x7fffffff,
                                     0x80000000, 0xffffffff, 1ull << 40, 0x7fffffffffffffff,
                                     ~0ull,      ~0ull - 1,  ~0ull - 7,  1ull << 63};

struct Options {
  uint64_t seed = 1;
  int64_t runs = 20'000;
  int64_t only = -1;
  std::vector<std::string> files;
};

// A description of the current input, made before the input runs, so that a crash handler can print
// it.
char g_where[128] = "at start";

void PrintWhere() {
  ssize_t ignored = write(STDERR_FILENO, g_where, std::strlen(g_where));
  static_cast<void>(ignored);
}

void OnFatalSignal(int signal_number) {
  PrintWhere();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void InstallCrashReport() {
  signal(SIGABRT, OnFatalSignal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(PrintWhere);
  } else {
    signal(SIGSEGV, OnFatalSignal);
    signal(SIGFPE, OnFatalSignal);
  }
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, uint64_t seed) : corpus_(corpus), random_(seed) {}

  std::string Next() {
    std::string input = corpus_[Below(corpus_.size())];
    for (uint64_t left = 1 + Below(6); left > 0; --left) MutateOnce(&input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void MutateOnce(std::string* input) {
    switch (Below(8)) {
      case 0:
        return Overwrite(input, 1, random_());
      case 1:
        return Overwrite(input, size_t{1} << Below(4),
                         kInteresting[Below(std::size(kInteresting))]);
      case 2:
        if (!input->empty()) (*input)[Below(input->size())] ^= static_cast<char>(1 << Below(8));
        return;
      case 3:
        return input->resize(Below(input->size() + 1));
      case 4:
        return static_cast<void>(
            input->insert(Below(input->size() + 1), Below(16) + 1, static_cast<char>(random_())));
      case 5:
        return static_cast<void>(input->erase(Below(input->size() + 1), Below(32) + 1));
      case 6:
        return Splice(input, *input);
      default:
        return Splice(input, corpus_[Below(corpus_.size())]);
    }
  }

  // Overwrites `width` bytes at a random place with the low bytes of `value`.
  void Overwrite(std::string* input, size_t width, uint64_t value) {
    if (input->size() < width) return;
    std::memcpy(&(*input)[Below(input->size() - width + 1)], &value, width);
  }

  // Inserts a part of `from`. `from` is a copy, because it may be the input itself.
  void Splice(std::string* input, std::string from) {
    size_t start = Below(from.size() + 1);
    size_t length = std::min<size_t>(from.size() - start, 1 + Below(256));
    input->insert(Below(input->size() + 1), from.substr(start, length));
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

// Runs a copy that has exactly the input's size, so that a sanitizer sees reads past its end.
void RunOne(const std::string& input) {
  std::vector<uint8_t> exact(input.begin(), input.end());
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    if (arg.rfind("--seed=", 0) == 0) {
      options->seed = std::strtoull(arg.c_str() + 7, nullptr, 10);
    } else if (arg.rfind("--runs=", 0) == 0) {
      options->runs = std::strtoll(arg.c_str() + 7, nullptr, 10);
    } else if (arg.rfind("--only=", 0) == 0) {
      options->only = std::strtoll(arg.c_str() + 7, nullptr, 10);
    } else if (arg.rfind("--", 0) == 0) {
      std::fprintf(stderr, "unknown flag %s; known: --seed= --runs= --only=\n", arg.c_str());
      return false;
    } else {
      options->files.push_back(arg);
    }
  }
  return true;
}

bool ReadCorpus(const std::vector<std::string>& files, std::vector<std::string>* corpus) {
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      std::fprintf(stderr, "cannot read corpus file %s\n", file.c_str());
      return false;
    }
    corpus->emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return true;
}

std::string MutationNumber(const std::vector<std::string>& corpus, uint64_t seed, int64_t number) {
  uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(number);
  return Mutator(corpus, mixed).Next();
}

void PrintInput(const std::string& input) {
  std::printf("%zu bytes:", input.size());
  for (char c : input) std::printf(" %02x", static_cast<unsigned char>(c));
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::vector<std::string> corpus;
  if (!ParseOptions(argc, argv, &options) || !ReadCorpus(options.files, &corpus)) return 2;
  corpus.emplace_back();  // every corpus includes the empty input
  InstallCrashReport();

  if (options.only >= 0) {
    std::string input = MutationNumber(corpus, options.seed, options.only);
    PrintInput(input);
    RunOne(input);
    return 0;
  }
  for (size_t i = 0; i < corpus.size(); ++i) {
    const char* name = i < options.files.size() ? options.files[i].c_str() : "(empty)";
    std::snprintf(g_where, sizeof(g_where), "fuzz: died in corpus input %s\n", name);
    RunOne(corpus[i]);
  }
  for (int64_t i = 0; i < options.runs; ++i) {
    std::snprintf(g_where, sizeof(g_where),
                  "fuzz: died in a mutation; repeat with --seed=%llu --only=%lld\n",
                  static_cast<unsigned long long>(options.seed), static_cast<long long>(i));
    RunOne(MutationNumber(corpus, options.seed, i));
  }
  std::printf("fuzz: %zu corpus inputs and %lld mutations passed\n", corpus.size(),
              static_cast<long long>(options.runs));
  return 0;
}
