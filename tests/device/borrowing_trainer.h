#pragma once

namespace psd::testing {

// The first argument of a process that is a trainer and runs no tests.
inline constexpr char kBorrowingTrainer[] = "borrowing_trainer";

// The main function of a trainer that reads a parameter of an owner in place, on the device that
// both have. Its arguments, after the program and kBorrowingTrainer, are its name, the owner's name
// and address, and the name of the parameter. Pulls the parameter, and for each byte that it gets
// from standard input writes a line with the first and the last element to standard output, until
// its input ends. For the byte 'p', it first pulls again.
int RunBorrowingTrainer(int count, char** arguments);

}  // namespace psd::testing
