"""`veca page`: a local page where one moves the budget and sees what it does.

samples.py  two drawn pictures, and the demo's if it was run
looking.py  one picture at one budget and resolution → features, traces and what they cost
pictures.py what the page shows of it, as images and a small table
app.py      the page itself: components and what happens when one is touched
command.py  the verb
"""
