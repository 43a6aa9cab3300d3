// Where ranks outnumber their node's cores: some take the steps, one on each core, and the others sleep until these are
// done and take over what came out.
//
//   P ranks of the node      V virtual ranks
#include <vector>

namespace {

/// Something that each rank has for itself, and the first member publishes for those outside of the crew.
struct Published {
    void* own;
    void* shared;
    std::int64_t num_bytes;
};

/// What a rank knows of the crew; the fields are those of `KernelCrew` in crew.py, in their order.
struct Crew {
    Meeting* begin;              // of the steps: all ranks arrive, the members wait
    Meeting* end;                // the first member opens its next round, all others wait for it
    Meeting* reduction;          // see sum_at_meeting
    double* stop_flags;          // [P]
    double* running_sums;        // [V][2]: losses and weights of the epoch, to which the members add
    double* loss_sums;           // [V][2]: as they were after the last call; stays until all ranks have come again
    double* gathered;            // [2][V][2]
    double* own_sums;            // [k][2]: the rows of this rank's virtual ranks
    const Published* published;  // [num_published]
    std::int64_t* num_taken;
    std::int64_t num_published, num_ranks, rank;
    std::int64_t member;  // its number in the crew, -1 outside
    std::int64_t num_virtual_ranks, first_row, num_own_rows, num_spins;
};

std::size_t bytes_of_rows(std::int64_t num_rows) { return 2 * sizeof(double) * static_cast<std::size_t>(num_rows); }

}  // namespace

extern "C" {

/// Adds rows [V][2] into total [2] in the tree ((0,1),(2,3)),... for V a power of two.
void sum_rows_in_tree(const double* rows, std::int64_t num_rows, double* total) {
    std::vector<double> level(rows, rows + 2 * num_rows);
    for (std::int64_t distance = 1; distance < num_rows; distance *= 2)
        for (std::int64_t r = 0; r + distance < num_rows; r += 2 * distance)
            for (int i = 0; i < 2; ++i) level[2 * r + i] += level[2 * (r + distance) + i];
    std::memcpy(total, level.data(), bytes_of_rows(1));
}

/// Adds all ranks' rows, of which own [k][2] are this one's, into total [2]. Collective over all ranks of the node.
void sum_at_meeting(const Crew* crew, const double* own, double* total) {
    // In turns: who writes to a buffer again has met all, since they last read it.
    const std::uint32_t buffer = crew->reduction->round.load(std::memory_order_acquire) % 2;
    double* rows = crew->gathered + 2 * buffer * crew->num_virtual_ranks;
    std::memcpy(rows + 2 * crew->first_row, own, bytes_of_rows(crew->num_own_rows));
    meet(*crew->reduction, static_cast<std::uint32_t>(crew->num_ranks), 0);
    sum_rows_in_tree(rows, crew->num_virtual_ranks, total);
}

/// As take_steps, with one result for all ranks of the node, on all of which it is collective.
std::int64_t take_steps_by_crew(const Crew* crew, const Step* step, const SharedSum* shared, const std::int64_t* order,
                                std::int64_t order_step, std::int64_t num_steps, double stop_flag, double learning_rate,
                                double* losses) {
    const bool is_member = crew->member >= 0;
    std::memcpy(crew->running_sums + 2 * crew->first_row, crew->own_sums, bytes_of_rows(crew->num_own_rows));
    crew->stop_flags[crew->rank] = stop_flag;
    const std::uint32_t unfinished = crew->end->round.load();
    const std::uint32_t unbegun = arrive(*crew->begin, static_cast<std::uint32_t>(crew->num_ranks));
    if (is_member) {
        wait_for_end(*crew->begin, unbegun, 0);  // those that are to come need the cores
        double num_requests = 0;
        for (std::int64_t p = 0; p < crew->num_ranks; ++p) num_requests += crew->stop_flags[p];
        *crew->num_taken = take_steps(step, shared, order, order_step, num_steps, num_requests, learning_rate, losses);
    }
    if (crew->member == 0) {
        std::memcpy(crew->loss_sums, crew->running_sums, bytes_of_rows(crew->num_virtual_ranks));
        for (std::int64_t i = 0; i < crew->num_published; ++i)
            std::memcpy(crew->published[i].shared, crew->published[i].own,
                        static_cast<std::size_t>(crew->published[i].num_bytes));
        open_next_round(*crew->end);
    } else {
        wait_for_end(*crew->end, unfinished, is_member ? crew->num_spins : 0);
    }
    for (std::int64_t i = 0; i < crew->num_published && !is_member; ++i)
        std::memcpy(crew->published[i].own, crew->published[i].shared,
                    static_cast<std::size_t>(crew->published[i].num_bytes));
    std::memcpy(crew->own_sums, crew->loss_sums + 2 * crew->first_row, bytes_of_rows(crew->num_own_rows));
    return *crew->num_taken;
}
}
