// Everything once, in the order of the page.
startTheme();
startCopying();
startSpeed();
startPrinting();
drawIcicle();
drawCapacity();
drawBlockSizes();
drawOverTime();
drawSessions();
drawStrip();
drawValue();
document.documentElement.dataset.ready = "true";
