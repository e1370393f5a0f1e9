# Runs the cases that are asked for.


@case(0)
def _():
    for name in GIVEN["names"]:
        tell(name, address_of(name), True, None)


for CASE in [int(word) for word in sys.argv[1].split(",")]:
    CASES[CASE]()
